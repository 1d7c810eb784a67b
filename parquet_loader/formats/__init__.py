"""File formats, each behind the protocol `Format` of `base`."""
