"""The webhook as a server: where its parts come from, and how bytes reach them.

`compose` builds what is served from `sources`. From the network inwards: `listener` accepts, `tls` encrypts, `http1`
frames, `front` decides who answers, `wsgi` calls the Flask application; `connections` keeps them within `limits`.
`lifecycle` starts and drains the whole; `serve`, `arbiter` and `worker` put it under gunicorn.
"""
