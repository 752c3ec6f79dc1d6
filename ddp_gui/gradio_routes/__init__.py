"""What may be asked of Gradio: its open routes, its sessions, its uploads and our named endpoints."""
