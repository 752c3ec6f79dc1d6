"""The public part of Gradio: routes, sessions, uploads and the named endpoints of this page."""
