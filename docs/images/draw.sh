#!/usr/bin/env bash
# Draw the diagrams of this folder: NAME.html becomes NAME.png. Needs chromium and pillow.
set -euo pipefail
cd "$(dirname "$0")"
for page in *.html; do
  chromium --headless --no-sandbox --disable-gpu --hide-scrollbars --window-size=760,1400 \
    --screenshot="${page%.html}.png" "$page" 2>/dev/null
  python3 - "${page%.html}.png" <<'CODE'
import sys
from PIL import Image, ImageChops

drawn = Image.open(sys.argv[1]).convert("RGB")
_, _, _, bottom = ImageChops.difference(drawn, Image.new("RGB", drawn.size, "white")).getbbox()
drawn.crop((0, 0, drawn.width, bottom + 18)).quantize(128).save(sys.argv[1], optimize=True)
CODE
done
