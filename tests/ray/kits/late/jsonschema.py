"""Stand-in that loads jsonschema at its first use (later.py)."""

import later

later.defer(__name__)
