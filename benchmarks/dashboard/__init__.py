"""What the dashboard costs and how quick it is, measured from outside: a browser, /proc and sockets."""
