"""What of Gradio is open: its routes, its sessions, its uploads and our named endpoints."""
