"""Colour profiles (ICC.1:2010) to test with."""

import struct

D50 = (0.9642, 1.0, 0.8249)
P3 = {
    b"rXYZ": (0.5151, 0.2412, -0.0011),
    b"gXYZ": (0.2920, 0.6922, 0.0419),
    b"bXYZ": (0.1571, 0.0666, 0.7841),
}
"""The primaries of Display P3, adapted to D50."""


def icc_profile(space: str, gamma: float) -> bytes:
    """A profile of greys (`GRAY`), or of colours with P3's primaries (`RGB `)."""
    curve = b"curv" + bytes(4) + struct.pack(">IH2x", 1, round(gamma * 256))
    text = b"mluc" + bytes(4) + struct.pack(">II2s2sII2s2x", 1, 12, b"en", b"US", 2, 28, b"\0g")
    points = {b"wtpt": D50} | (P3 if space == "RGB " else {})
    tags = {
        name: b"XYZ " + bytes(4) + struct.pack(">3i", *(round(x * 65536) for x in point))
        for name, point in points.items()
    }
    tags |= dict.fromkeys((b"desc", b"cprt"), text)
    tags |= dict.fromkeys((b"rTRC", b"gTRC", b"bTRC") if space == "RGB " else (b"kTRC",), curve)
    table, body, start = struct.pack(">I", len(tags)), b"", 128 + 4 + 12 * len(tags)
    for tag, data in tags.items():
        table += tag + struct.pack(">II", start + len(body), len(data))
        body += data
    kind = b"mntr" + space.encode() + b"XYZ "
    head = struct.pack(
        ">I4x4s12s12x4s28x12s48x", start + len(body), b"\4\x20\0\0", kind, b"acsp", tags[b"wtpt"][8:]
    )
    return head + table + body
