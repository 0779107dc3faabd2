from __future__ import annotations

from hypothesis import settings

# The machines that run this are shared and slow at times: a slow example is no defect.
settings.register_profile("polyray", deadline=None, print_blob=True)
settings.load_profile("polyray")
