"""The machine itself: it reads PTX, and schedules warps and events."""
