"""The public part of Gradio: its routes, its sessions, its uploads and our named endpoints."""
