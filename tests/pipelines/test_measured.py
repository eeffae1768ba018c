import pytest

from pipelines.catalog.measured import UNTIMED, measured
from pipelines.catalog.paths import CLASSIFICATION, PRUNED_STYLES, QUALITY, TIMINGS
from singleshot.errors import UserError
from singleshot.export.onnx_model import GraphCard

PRUNED = "style,pruner,sparsity,style_ratio_alexnet,ssim,lpips,photos,size_px"
SECONDS = "onnxruntime_seconds,onnxruntime_compacted_seconds"
TABLES = {
    TIMINGS: """model,form,runtime,device,threads,batch,size_px,p50_ms,status
Hopper/bcq/snip-0.95/seed-0,compacted,torch,cpu,1,1,,0.5,ok
Hopper/bcq/snip-0.95/seed-0,compacted,tvm,cpu,0,1,,0.0213,ok
Hopper/bcq/snip-0.95/seed-0,compacted,xla,cpu,1,1,,0.001,failed
Hopper/bcq/snip-0.95/seed-0,compacted,openvino-f32,cpu,1,256,,0.01,ok
styles/swirls,dense,onnxruntime,cpu,1,1,256,41.26,ok
""",
    QUALITY: """style,method,image,style_ratio_alexnet,ssim,lpips,warping_error_ratio
waves,johnson,chelsea,0.6,0.5,0.3,
waves,johnson,coffee,0.7,0.7,0.4,
waves,johnson,clip,0.1,0.1,0.1,0.4
waves,gatys-vgg19,chelsea,0.1,0.1,0.1,
""",
    PRUNED_STYLES: f"""{PRUNED},{SECONDS}
swirls,dense,0,0.1,0.9,0.9,3,256,0.05,
swirls,snip,0.98,0.75,0.4,0.35,3,256,0.04,0.0123
""",
    CLASSIFICATION: """photo,preprocessing,runtime,rank,same_top5_as_torch
chelsea,right,onnxruntime,1,True
chelsea,right,onnxruntime,2,True
coffee,right,onnxruntime,1,False
coffee,reported,onnxruntime,1,True
coffee,right,tvm,1,True
""",
}


@pytest.fixture(autouse=True)
def tables(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path, text in TABLES.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def card(kind, cell, form="dense", style=""):
    return GraphCard(kind, cell, form, 0.0, "0", "0", (), (), {"style": style})


def test_a_policy_has_the_fastest_runtime_for_one_state():
    assert measured(card("policy", "Hopper/bcq/snip-0.95/seed-0", "compacted")) == {
        "latency": "0.0213 ms for one state by tvm, the fastest of 2 runtimes (median; all cores, cpu)"
    }
    assert measured(card("policy", "Hopper/bc/dense/seed-0")) == {"latency": UNTIMED}


def test_a_style_has_the_judgement_of_a_network_without_part_in_its_training():
    facts = measured(card("style", "styles/waves", style="waves"))
    assert facts["quality"].startswith("35% of the way from photo to painting, as AlexNet sees it")
    assert facts["quality"].endswith("SSIM 0.60 and LPIPS 0.35 (means over 2 photos)")
    assert facts["latency"].startswith("41.3 ms for one picture of 256 x 256 px by onnxruntime")
    assert facts["latency"].endswith("; measured on styles/swirls, which has the same shape")


def test_a_pruned_style_has_its_own_measurements_beside_the_dense_ones():
    facts = measured(card("style", "styles/swirls/snip-0.98", "compacted", "swirls/snip-0.98"))
    assert facts["quality"].startswith("25% of the way from photo to painting, as AlexNet sees it")
    assert facts["quality"].endswith("SSIM 0.40 and LPIPS 0.35 (means over 3 photos)")
    assert facts["latency"].startswith("12.3 ms for one picture with a short side of 256 px by onnxruntime")
    dense = measured(card("style", "styles/swirls", style="swirls"))
    assert dense["latency"].startswith("50 ms for one picture with a short side of 256 px by onnxruntime")


def test_a_classifiers_accuracy_is_not_claimed():
    facts = measured(card("classifier", "classifiers/efficientnet_lite0"))
    assert "not measured" in facts["quality"]
    assert "1 of 2 photos" in facts["quality"]
    assert facts["latency"] == UNTIMED


def test_a_missing_table_is_named(tmp_path):
    (tmp_path / TIMINGS).unlink()
    with pytest.raises(UserError, match=r"timings\.csv: no such file"):
        measured(card("policy", "Hopper/bc/dense/seed-0"))
