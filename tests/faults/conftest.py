"""The kill matrix's checks stand beside its tests, where its script finds them too."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("kill_cells")
