import pytest

from pipelines.catalog.measured import UNTIMED, measured
from pipelines.catalog.paths import CLASSIFICATION, QUALITY, TIMINGS
from singleshot.errors import UserError
from singleshot.export.onnx_model import GraphCard

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


def test_a_classifiers_accuracy_is_not_claimed():
    facts = measured(card("classifier", "classifiers/efficientnet_lite0"))
    assert "not measured" in facts["quality"]
    assert "1 of 2 photos" in facts["quality"]
    assert facts["latency"] == UNTIMED


def test_a_missing_table_is_named(tmp_path):
    (tmp_path / TIMINGS).unlink()
    with pytest.raises(UserError, match=r"timings\.csv: no such file"):
        measured(card("policy", "Hopper/bc/dense/seed-0"))
