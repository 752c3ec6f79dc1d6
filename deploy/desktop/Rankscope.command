#!/bin/sh
# For a Mac: double-click it in Finder.
exec "$(dirname "$0")/start.sh"
