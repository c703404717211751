"""The web application: the API of messages, what machines ask about health and load, and the pages behind unsubscribe links.

One module for one concern, each with `routes(...)`; `app` puts them together. What a request means for mail is decided by the
library's modules, never here: a handler reads the request, makes one call, and writes the answer.
"""
