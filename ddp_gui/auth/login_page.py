"""The login page: plain HTML that works without scripts."""

from __future__ import annotations

from html import escape

from ddp_gui.http import static

TITLE = "Log in · DDP, live"
# The only files served without a session, besides the page itself.
FILES = (
    "live/assets/css/shared/colours.css",
    "live/assets/css/auth/login.css",
    "live/assets/icons/favicon.svg",
    "live/assets/js/first.js",
    static.TYPEFACE,
)


def render(wished: str, name: str = "", problem: str = "") -> str:
    """Return the page.

    Args:
        wished: where to go afterwards.
        name: what was typed before.
        problem: why that did not work.
    """
    alert = f'<p class="ddp-login-problem" role="alert" id="problem">{escape(problem)}</p>' if problem else ""
    described = ' aria-describedby="problem" aria-invalid="true"' if problem else ""
    # With a name filled in, the focus is on the password.
    focus_name, focus_password = ("", " autofocus") if name else (" autofocus", "")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{TITLE}</title>
<link rel="stylesheet" href="./{FILES[0]}">
<link rel="stylesheet" href="./{FILES[1]}">
<link rel="icon" href="./{FILES[2]}">
<script src="./{FILES[3]}"></script>
</head>
<body class="ddp-login-body">
<main class="ddp-login">
<p class="ddp-login-brand">DDP, live</p>
<h1>Log in</h1>
<p class="ddp-login-words">Train networks on several GPUs at once, and watch it happen.</p>
{alert}
<form method="post" action="./login">
<input type="hidden" name="next" value="{escape(wished, quote=True)}">
<label for="username">Name</label>
<input id="username" name="username" value="{escape(name, quote=True)}"
 autocomplete="username" autocapitalize="none" spellcheck="false" maxlength="80"
 required{focus_name}{described}>
<label for="password">Password</label>
<input id="password" name="password" type="password" autocomplete="current-password" maxlength="200"
 required{focus_password}{described}>
<button type="submit">Log in</button>
</form>
<p class="ddp-login-words">No account, or forgot your password? Ask the person who set up this page.</p>
</main>
</body>
</html>
"""
