import sys
from pathlib import Path

from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent))
# A busy machine must not fail a law.
settings.register_profile("plan", deadline=None, max_examples=60)
settings.load_profile("plan")
