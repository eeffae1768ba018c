"""Reading, writing and downloading files."""

import os

# onnxruntime reads this when it is imported. Without it, it records its use in a database in the user's home,
# with an id of the device, to upload it.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"
