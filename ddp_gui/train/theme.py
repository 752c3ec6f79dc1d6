"""Gradio's theme: each of its variables that is seen points at a token of `assets/css/shared/colours.css`."""

from __future__ import annotations

import gradio as gr
from gradio.themes.utils.sizes import Size

# Of the page's text, so that all of it grows on a very large screen.
_TEXT = Size("0.7rem", "0.75rem", "0.85rem", "0.94rem", "1rem", "1.35rem", "1.6rem", name="text_ddp")
# The same in light and dark: the tokens change themselves.
_VARIABLES = {
    "body_background_fill": "ground",
    "body_text_color": "text",
    "body_text_color_subdued": "soft",
    "background_fill_primary": "card",
    "background_fill_secondary": "sunk",
    "block_background_fill": "card",
    "block_border_color": "line",
    "block_info_text_color": "soft",
    "block_label_background_fill": "sunk",
    "block_label_border_color": "line",
    "block_label_text_color": "soft",
    "block_title_text_color": "text",
    "border_color_accent": "blue",
    "border_color_accent_subdued": "blue",
    "border_color_primary": "line",
    "button_primary_background_fill": "blue",
    "button_primary_background_fill_hover": "blue",
    "button_primary_border_color": "blue",
    "button_primary_border_color_hover": "blue",
    "button_primary_text_color": "on-blue",
    "button_secondary_background_fill": "card",
    "button_secondary_background_fill_hover": "sunk",
    "button_secondary_border_color": "line",
    "button_secondary_border_color_hover": "soft",
    "button_secondary_text_color": "text",
    "checkbox_background_color": "field",
    "checkbox_background_color_selected": "blue",
    "checkbox_border_color": "field-line",
    "checkbox_border_color_focus": "focus",
    "checkbox_border_color_hover": "soft",
    "checkbox_border_color_selected": "blue",
    "checkbox_label_background_fill": "card",
    "checkbox_label_background_fill_hover": "sunk",
    "code_background_fill": "sunk",
    "color_accent_soft": "sunk",
    "error_background_fill": "red-ground",
    "error_border_color": "red",
    "error_icon_color": "red",
    "error_text_color": "text",
    "input_background_fill": "field",
    "input_border_color": "field-line",
    "input_border_color_focus": "focus",
    "input_border_color_hover": "soft",
    "input_placeholder_color": "soft",
    "link_text_color": "blue",
    "link_text_color_active": "blue",
    "link_text_color_hover": "blue",
    "link_text_color_visited": "blue",
    "panel_background_fill": "sunk",
    "panel_border_color": "line",
    "table_border_color": "line",
    "table_even_background_fill": "card",
    "table_odd_background_fill": "sunk",
}
# These have one value for both.
_BOTH = {
    "block_radius": "radius",
    "button_large_radius": "radius-small",
    "button_medium_radius": "radius-small",
    "button_small_radius": "radius-small",
    "color_accent": "blue",
    "container_radius": "radius",
    "embed_radius": "radius",
    "input_radius": "radius-small",
    "table_radius": "radius",
}


def make_theme() -> gr.themes.Base:
    """Return the theme of the Train page; nothing of it is fetched from elsewhere."""
    theme = gr.themes.Default(text_size=_TEXT, font=["var(--ddp-sans)"], font_mono=["var(--ddp-mono)"])
    values = {name: f"var(--ddp-{token})" for name, token in (_VARIABLES | _BOTH).items()}
    dark = {f"{name}_dark": values[name] for name in _VARIABLES}
    return theme.set(layout_gap="var(--ddp-gap)", button_border_width="1px", **values, **dark)
