"""All causes of the exam, in the order of its table."""

from __future__ import annotations

import fresh
import user_code

CAUSES = (*user_code.CAUSES, *fresh.CAUSES)
