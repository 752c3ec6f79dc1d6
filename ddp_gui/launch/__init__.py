"""Creates runs, sends them commands, and resumes and stops them."""
