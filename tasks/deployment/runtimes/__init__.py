"""One adapter a runtime, all behind `protocol.Runtime`."""
