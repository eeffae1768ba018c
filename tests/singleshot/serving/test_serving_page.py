"""The page to play with, in a browser as a person would use it, of graphs that NumPy knows the answers of."""

import base64
import io
import re

import numpy as np
import pytest
import requests
from browsers import TOO_WIDE
from PIL import Image
from serving_clients import serving
from waiting import PAGE_S

playwright = pytest.importorskip("playwright.sync_api")
pytestmark = pytest.mark.slow

PIXELS = "canvas => canvas.toDataURL('image/png').split(',')[1]"


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("serve"), max_body_mb=2.0, stylize_pixels=200_000) as (address, *_):
        yield address


@pytest.fixture
def page(browser, address):
    context = browser.new_context(viewport={"width": 390, "height": 844})
    context.set_default_timeout(1000 * PAGE_S)
    page = context.new_page()
    page.requested, page.troubles = [], []
    page.on("request", lambda request: page.requested.append(request.url))
    page.on("pageerror", lambda error: page.troubles.append(str(error)))
    page.goto(address)
    yield page
    assert page.troubles == []
    assert [url for url in page.requested if not url.startswith((address, "data:", "blob:"))] == []
    assert page.evaluate(TOO_WIDE) == 0
    context.close()


def picture(height=48, width=64):
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)
    content = io.BytesIO()
    Image.fromarray(pixels).save(content, "PNG")
    return pixels.astype(int), content.getvalue()


def grey(value):
    """A picture as large as the drawn one."""
    content = io.BytesIO()
    Image.new("RGB", (384, 288), (value, value, value)).save(content, "PNG")
    return content.getvalue()


def shown(page, number):
    """The pixels of a picture among the styles; the original is number 0."""
    content = page.locator("#styles canvas").nth(number).evaluate(PIXELS)
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(content))).convert("RGB")).astype(int)


def choose(page, content, name="photo.png"):
    page.set_input_files("#file", {"name": name, "mimeType": "image/png", "buffer": content})


def slide(page, name, value):
    page.locator(name).evaluate(
        f"slider => {{ slider.value = {value}; slider.dispatchEvent(new Event('input')); }}"
    )


def wait_for_style(page, height, width):
    """Wait until a picture of that size is there in its style; before, the page shows a drawn one."""
    page.wait_for_function(
        """([width, height]) => {
            const canvas = document.querySelectorAll("#styles canvas")[1];
            return canvas && canvas.width == width && canvas.height == height;
        }""",
        arg=[width, height],
    )
    page.get_by_text("1 of 1 styles.").wait_for()


def test_a_picture_is_seen_in_every_style_and_the_sliders_blend_it(page):
    pixels, content = picture()
    choose(page, content)
    wait_for_style(page, *pixels.shape[:2])
    assert np.array_equal(shown(page, 0), pixels)
    assert np.array_equal(shown(page, 1), 255 - pixels)
    assert page.locator("#styles figcaption").nth(1).inner_text().split()[:2] == ["swirls", "styled"]
    page.get_by_role("button", name="Show swirls large").click()
    page.get_by_role("dialog").get_by_role("img", name="swirls").wait_for()
    page.keyboard.press("Escape")
    slide(page, "#strength", 50)
    assert np.abs(shown(page, 1) - 127.5).max() <= 1
    slide(page, "#strength", 100)
    slide(page, "#colour", 0)
    luma = np.array([0.299, 0.587, 0.114])
    own_colours = pixels + ((255 - 2 * pixels) @ luma)[..., None]
    assert np.abs(shown(page, 1) - own_colours.clip(0, 255)).max() <= 1
    with page.expect_download() as download:
        page.get_by_role("link", name="Download swirls").click()
    assert download.value.suggested_filename == "swirls.png"
    saved = np.asarray(Image.open(download.value.path()).convert("RGB")).astype(int)
    assert np.array_equal(saved, shown(page, 1))


def test_the_original_is_saved_in_its_own_size_as_it_is_shown(page):
    content = io.BytesIO()
    Image.fromarray(picture(6, 8)[0].astype(np.uint8)).resize((480, 400)).save(content, "PNG")
    choose(page, content.getvalue())
    wait_for_style(page, 320, 384)
    slide(page, "#strength", 50)
    page.get_by_role("link", name="Download swirls, 384 × 320 px").wait_for()
    with page.expect_download() as download:
        page.get_by_role("link", name="Download swirls, 480 × 400 px").click()
    saved = Image.open(download.value.path()).convert("RGB")
    assert saved.size == (480, 400)
    assert np.abs(np.asarray(saved) - 127.5).mean() < 3  # half-way to its negative


def test_what_the_brush_paints_or_a_mask_has_stays_as_in_the_picture(page):
    pixels, content = picture(96, 128)
    choose(page, content)
    wait_for_style(page, 96, 128)
    slide(page, "#brush-size", 40)
    original = page.locator("#styles canvas").first
    original.click()
    kept = np.abs(shown(page, 1) - pixels).max(axis=2) <= 1
    styled = np.abs(shown(page, 1) - (255 - pixels)).max(axis=2) <= 1
    y, x = np.mgrid[:96, :128]
    distance = np.hypot(y - 47.5, x - 63.5)
    assert kept[distance < 12].all()  # the brush is 51 pixels wide, and soft from a half of that on
    assert styled[distance > 28].all()
    page.click("#mask-swap")
    assert np.abs(shown(page, 1) - pixels)[distance > 28].max() <= 1
    page.click("#mask-clear")
    assert np.array_equal(shown(page, 1), 255 - pixels)
    assert np.array_equal(shown(page, 0), pixels)
    page.select_option("#brush", "style")
    page.click("#mask-swap")
    original.click()
    assert np.array_equal(shown(page, 1)[distance < 12], (255 - pixels)[distance < 12])
    mask = np.where(x < 64, 0, 255).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(mask).save(file, "PNG")
    canvas = "document.querySelectorAll('#styles canvas')[1]"
    before = page.evaluate(f"({PIXELS})({canvas})")
    given = {"name": "mask.png", "mimeType": "image/png", "buffer": file.getvalue()}
    page.set_input_files("#mask-file", given)
    page.wait_for_function(f"before => ({PIXELS})({canvas}) != before", arg=before)
    assert np.array_equal(shown(page, 1), np.where(mask[..., None], 255 - pixels, pixels))
    page.set_input_files("#mask-file", given | {"buffer": b"no picture"})
    page.get_by_text("This mask isn't a picture").wait_for()


def test_strokes_and_faces_are_the_servers(page):
    asked = []
    page.on("request", lambda request: asked.append(request.url) if "/stylize/" in request.url else None)
    wait_for_style(page, 288, 384)
    for change in (
        "stroke => { stroke.value = 300; stroke.dispatchEvent(new Event('change')); }",
        "stroke => document.getElementById('keep-faces').click()",
    ):
        with page.expect_request(re.compile("/stylize/")):
            page.locator("#stroke").evaluate(change)
        wait_for_style(page, 288, 384)
    queries = [url.partition("?")[2] for url in asked]
    assert queries[-2:] == ["stroke=6&keep_faces=false", "stroke=6&keep_faces=true"]
    # The negative, drawn at 128 pixels and brought up, is as sharp as the picture.
    assert np.abs(shown(page, 1) - (255 - shown(page, 0))).mean() < 3


def test_a_picture_is_dropped_on_the_page_and_scaled_to_what_was_chosen(page):
    _, content = picture(300, 600)
    page.select_option("#side", "256")
    page.evaluate(
        """content => {
            const bytes = Uint8Array.from(atob(content), letter => letter.charCodeAt(0));
            const transfer = new DataTransfer();
            transfer.items.add(new File([bytes], "photo.png", { type: "image/png" }));
            document.body.dispatchEvent(new DragEvent("drop", { dataTransfer: transfer, bubbles: true }));
        }""",
        base64.b64encode(content).decode(),
    )
    wait_for_style(page, 128, 256)
    assert shown(page, 1).shape == (128, 256, 3)


HOLD = """() => {
    const original = createImageBitmap, held = new Promise(done => { window.release = done; });
    window.createImageBitmap = async source => {
        window.createImageBitmap = original;
        const result = original(source);
        await Promise.allSettled([result, held]);
        return result;
    };
}"""
"""The browser's decoding, which has no end for the first picture before `release()`."""


@pytest.mark.parametrize("first", [picture()[1], b"no picture"], ids=["decoded late", "refused late"])
def test_the_picture_chosen_last_stays(page, first):
    wait_for_style(page, 288, 384)
    page.evaluate(HOLD)
    choose(page, first, "first.png")
    pixels, content = picture(40, 80)
    choose(page, content, "last.png")
    wait_for_style(page, 40, 80)
    page.evaluate("async () => { release(); await new Promise(done => setTimeout(done)); }")
    assert page.locator("#picture-error").inner_text() == ""
    slide(page, "#strength", 0)  # draws the picture again
    assert np.array_equal(shown(page, 1), pixels)


def serves(page, address, **models):
    """Let the page find other models of some kinds than the server's."""
    served = requests.get(f"{address}/models").json() | models
    page.route("**/models", lambda route: route.fulfill(json=served))


def test_what_is_not_served_is_not_spoken_of(page, address):
    served = requests.get(f"{address}/models").json()
    page.get_by_text("which one keeps on running").wait_for()
    serves(page, address, classifier=[], policy=served["policy"][:1])
    page.reload()
    page.get_by_text("Push it, and see whether it keeps on running").wait_for()
    assert not page.get_by_label("Beside it").is_visible()
    links = [link for link in page.locator("nav a[href^='#']").all() if link.is_visible()]
    assert len(links) == 3
    assert all(page.locator(link.get_attribute("href")).is_visible() for link in links)


def test_two_styles_are_mixed_as_the_command_mixes_them(page, address):
    serves(page, address, style=[{"name": name} for name in ("dark", "light")])
    bodies = {"dark": grey(64), "light": grey(224)}
    page.route(
        re.compile("/stylize/"),
        lambda route: route.fulfill(
            body=bodies["dark" if "/dark?" in route.request.url else "light"], content_type="image/png"
        ),
    )
    page.reload()
    page.get_by_text("2 of 2 styles.").wait_for()

    def mixed(share):
        slide(page, "#mix", share)
        content = page.locator("#mixed canvas").evaluate(PIXELS)
        return np.asarray(Image.open(io.BytesIO(base64.b64decode(content))).convert("RGB"))[100, 100]

    assert [mixed(share).tolist() for share in (0, 100)] == [[64] * 3, [224] * 3]
    logits = [np.log(value / (255 - value)) for value in (64, 224)]
    expected = 255 / (1 + np.exp(-(0.3 * logits[0] + 0.7 * logits[1])))
    assert np.abs(mixed(70) - expected).max() <= 1.5
    page.select_option("#mix-second", "dark")
    assert mixed(70).tolist() == [64] * 3


def test_the_camera_is_seen_in_a_style_until_it_is_stopped(page):
    """The browser's camera is a pretended one, whose picture moves."""
    page.locator("#camera-first option").first.wait_for(state="attached")
    page.select_option("#camera-side", "128")
    page.click("#camera-start")
    page.get_by_text(re.compile(r"^[\d.]+ pictures a second, 128 × 96 pixels\.$")).wait_for()
    first = page.locator("#camera-picture").evaluate(PIXELS)
    page.wait_for_function(
        f"first => ({PIXELS})(document.getElementById('camera-picture')) != first", arg=first
    )
    page.click("#camera-start")
    page.locator("#camera-start", has_text="Start the camera").wait_for()
    last = page.locator("#camera-picture").evaluate(PIXELS)
    page.wait_for_timeout(300)
    assert page.locator("#camera-picture").evaluate(PIXELS) == last
    assert page.locator("#camera-error").inner_text() == ""
    page.evaluate(
        "() => { navigator.mediaDevices.getUserMedia ="
        " async () => { throw new DOMException('', 'NotFoundError'); }; }"  # a bare function would be called
    )
    page.click("#camera-start")
    page.get_by_text("There is no camera.").wait_for()


def test_a_learned_style_is_shown_with_its_painting(page, address):
    serves(page, address, style=[{"name": "mine", "painting": True}], policy=[])
    answer = {"body": picture()[1], "content_type": "image/png"}
    page.route(re.compile("/(stylize|paintings)/mine"), lambda route: route.fulfill(**answer))
    page.reload()
    painting = page.get_by_alt_text("the painting of mine")
    painting.wait_for()
    assert painting.evaluate("async image => { await image.decode(); return image.naturalWidth; }") == 64
    page.get_by_text("No agent is served").wait_for()


def test_a_classifier_answers_as_when_it_is_asked_for_the_same_file(page, address):
    """The page shows a smaller picture, but has the file itself classified."""
    content = picture(270, 330)[1]
    page.select_option("#side", "256")
    choose(page, content)
    wait_for_style(page, 209, 256)
    for preparation in ("right", "reported"):
        page.locator(f"#{preparation} li").nth(4).wait_for()
        headers = {"Content-Type": "image/png"}
        asked = f"{address}/classify?preparation={preparation}"
        answers = requests.post(asked, content, headers=headers).json()["answers"]
        labels = page.locator(f"#{preparation} li span:nth-child(2)").all_inner_texts()
        assert labels == [each["label"] for each in answers]
    assert page.locator("#right").inner_text() != page.locator("#reported").inner_text()


def test_mistakes_are_told_in_words(page):
    choose(page, b"no picture", "notes.png")
    page.get_by_text("This file isn't a picture that your browser can read.").wait_for()
    page.route("**/stylize/**", lambda route: route.fulfill(status=503, json={"error": "16 are in progress"}))
    choose(page, picture()[1])
    page.get_by_text("swirls: 16 are in progress").wait_for()
    page.route("**/stylize/**", lambda route: route.abort())
    choose(page, picture()[1], "again.png")
    page.get_by_text("swirls: the server doesn't answer; is it still running?").wait_for()


def test_agents_are_chosen_watched_pushed_and_stopped_by_keyboard(page):
    page.locator("#first option").nth(1).wait_for(state="attached")
    assert page.locator("#first option").all_inner_texts() == ["BC, dense, seed 0", "BCQ, dense, seed 0"]
    page.select_option("#first", label="BCQ, dense, seed 0")
    page.select_option("#second", label="BC, dense, seed 0")
    page.locator("#watch").focus()
    page.keyboard.press("Enter")
    page.wait_for_function("!document.getElementById('push-on').disabled")
    page.get_by_text(re.compile(r"BCQ, dense, seed 0: [\w ]+; BC, dense, seed 0: [\w ]+\.")).wait_for()
    before = page.locator("#arena").evaluate(PIXELS)
    page.wait_for_function(f"before => ({PIXELS})(document.getElementById('arena')) != before", arg=before)
    page.locator("#push-on").focus()
    page.keyboard.press("Enter")
    page.locator("#watch").focus()
    page.keyboard.press("Enter")
    page.get_by_text("Stopped.").wait_for()
    assert page.locator("#agents-error").inner_text() == ""


@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (1920, "dark")])
def test_it_fits_every_screen_and_both_schemes(browser, address, width, scheme):
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    context.set_default_timeout(1000 * PAGE_S)
    page = context.new_page()
    page.goto(address)
    wait_for_style(page, 288, 384)
    assert page.evaluate(TOO_WIDE) == 0
    red, green, blue = page.evaluate(
        "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3).map(Number)"
    )
    assert (red + green + blue > 384) == (scheme == "light")
    context.close()
