"""What is a visitor's own, such as their picture: how long it is kept."""

from __future__ import annotations

from datetime import datetime

from gradio.blocks import Blocks
from gradio.state_holder import StateHolder

CLOSED_SECONDS = 3600
"""How long a visitor's own is kept after they last used the page, if it is closed or its connection was lost once.

Gradio's page does not connect again by itself, so that the two cannot be told apart. An open page keeps it.
"""


class Visitors(StateHolder):
    """Gradio's holder of what is the visitors' own, which forgets what nobody comes back for, and that alone.

    Gradio counts from when a value was last written, not used. So with its `time_to_live` a picture that somebody asks
    about all day turns into the first example after an hour; and once a connection was lost, as when a notebook
    sleeps, the same happens without one.
    """

    def delete_all_expired_state(self) -> None:
        """Forget whose page is closed, and who has not used it for a while. Gradio calls this every second."""
        now = datetime.now()
        with self.lock:
            for visitor, session in list(self.session_data.items()):
                away = (now - self.time_last_used.get(visitor, now)).total_seconds()
                if session.is_closed and away > CLOSED_SECONDS:
                    self.session_data.pop(visitor, None)
                    self.time_last_used.pop(visitor, None)


def keep_while_used(page: Blocks) -> None:
    """Have a page that was launched keep its visitors' own as `Visitors` does."""
    visitors = Visitors()  # type: ignore[no-untyped-call]
    visitors.set_blocks(page)
    page.app.state_holder = visitors
