"""The page for people at `/`: a chat box and live charts, in hand-written HTML, CSS and JavaScript without a build.

May import contracts, errors, and the server's auth and live feed. It serves the files under `static/` from memory and
the live feed as server-sent events; all else the page shows comes from the API that everybody uses.
"""

from paceline.server.page.router import page_response, router

__all__ = ["page_response", "router"]
