#!/usr/bin/env bash
# screenshot.sh PAGE: opens a page in headless Chromium, if it is installed, 400 and 1600 pixels wide, in both color schemes. No picture is
# blank, and the page is never wider than its window.
set -euo pipefail
page="$(realpath "$1")"
browser="$(command -v chromium || command -v chromium-browser || true)"
if [[ -z "$browser" ]]; then echo "skipped: Chromium is not installed (Debian's package chromium)"; exit 77; fi
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
chromium() {
  timeout 300 "$browser" --headless --no-sandbox --disable-gpu --hide-scrollbars --user-data-dir="$work/profile" "$@" 2>"$work/log"
}

# A window of Chromium is at least 500 wide; a frame has the requested width.
for width in 400 1600; do
  cat >"$work/frame.html" <<HTML
<body style="margin:0"><iframe id="frame" src="file://$page" style="border:0;width:${width}px;height:1400px"></iframe>
<script>onload = () => document.title = "width " + document.getElementById("frame").contentDocument.documentElement.scrollWidth</script>
HTML
  seen="$(chromium --allow-file-access-from-files --dump-dom "file://$work/frame.html" | grep -o '<title>width [0-9]*' || true)"
  if [[ "$seen" != "<title>width $width" ]]; then echo "in a frame of $width the page is: ${seen#<title>}"; cat "$work/log"; exit 1; fi
  for scheme in 0 1; do  # dark, light
    chromium --blink-settings=preferredColorScheme=$scheme --window-size="$((width < 500 ? 500 : width)),1400" \
      --screenshot="$work/page.png" "file://$work/frame.html"
    size="$(stat -c %s "$work/page.png")"
    if ((size < 20000)); then echo "a picture of $size bytes shows nothing, $width wide, scheme $scheme"; exit 1; fi
  done
done
echo "as it should be"
