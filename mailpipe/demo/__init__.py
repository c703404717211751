"""The demo: an invented audience to send to, and nothing that production needs."""
