"""Stand-in that loads requests at its first use (later.py)."""

import later

later.defer(__name__)
