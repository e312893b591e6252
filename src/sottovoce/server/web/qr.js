// QR codes of links, as SVG: bytes, error correction L, versions 1 to 6, mask 0. Source: ISO/IEC 18004.

const BLOCKS = [[19, 7, 1], [34, 10, 1], [55, 15, 1], [80, 20, 1], [108, 26, 1], [68, 18, 2]]; // data and check bytes of a block, blocks
const FORMAT = [..."111011111000100"].map(Number); // L and mask 0
const POWERS = [1];
for (let i = 1; i < 255; i += 1) POWERS.push((POWERS[i - 1] << 1) ^ (POWERS[i - 1] & 128 ? 0x11d : 0));
const LOGARITHMS = new Map(POWERS.map((power, i) => [power, i]));

function times(a, b) {
  return a && b ? POWERS[(LOGARITHMS.get(a) + LOGARITHMS.get(b)) % 255] : 0;
}

// The remainder of the division by the generator of Reed and Solomon.
function checkBytes(data, n) {
  let generator = [1];
  for (let i = 0; i < n; i += 1) generator = [...generator, 0].map((one, j) => one ^ times(generator[j - 1] ?? 0, POWERS[i]));
  const rest = [...data, ...Array(n).fill(0)];
  data.forEach((_, i) => {
    const lead = rest[i];
    generator.forEach((one, j) => (rest[i + j] ^= times(one, lead)));
  });
  return rest.slice(data.length);
}

// Bytes of a text in the order in which they are drawn, and the version; null if it is too long.
function codewords(text) {
  const bytes = [...new TextEncoder().encode(text)];
  const version = 1 + BLOCKS.findIndex(([data, , n]) => bytes.length + 2 <= data * n);
  if (!version) return null;
  const [size, nCheck, n] = BLOCKS[version - 1];
  const bits = [4, bytes.length >> 4, bytes.length & 15, ...bytes.flatMap((one) => [one >> 4, one & 15]), 0]; // of four bits each
  const data = [];
  for (let i = 0; i < bits.length; i += 2) data.push((bits[i] << 4) | (bits[i + 1] ?? 0));
  for (let i = 0; data.length < size * n; i += 1) data.push(i % 2 ? 0x11 : 0xec);
  const blocks = Array.from({ length: n }, (_, i) => data.slice(i * size, (i + 1) * size));
  const checks = blocks.map((block) => checkBytes(block, nCheck));
  const woven = (parts, length) => Array.from({ length }, (_, i) => parts.map((part) => part[i])).flat();
  return { version, bytes: [...woven(blocks, size), ...woven(checks, nCheck)] };
}

// Rows of dark (1) and light (0) modules; null if the text has more than 134 bytes.
export function modules(text) {
  const code = codewords(text);
  if (!code) return null;
  const size = 17 + 4 * code.version;
  const rows = Array.from({ length: size }, () => Array(size).fill(null));
  const square = (row, column, radius, isDark) => {
    for (let r = -radius; r <= radius; r += 1) {
      for (let c = -radius; c <= radius; c += 1) {
        if (rows[row + r]?.[column + c] !== undefined) rows[row + r][column + c] = Number(isDark(Math.max(Math.abs(r), Math.abs(c))));
      }
    }
  };
  for (const [row, column] of [[3, 3], [3, size - 4], [size - 4, 3]]) square(row, column, 4, (ring) => ring !== 2 && ring !== 4);
  if (code.version > 1) square(size - 7, size - 7, 2, (ring) => ring !== 1);
  for (let i = 8; i < size - 8; i += 1) rows[6][i] = rows[i][6] = 1 - (i % 2);
  FORMAT.forEach((bit, i) => {
    rows[8][i < 6 ? i : i < 8 ? i + 1 : size - 15 + i] = bit;
    rows[i < 7 ? size - 1 - i : i < 9 ? 15 - i : 14 - i][8] = bit;
  });
  rows[8][size - 8] = FORMAT[7];
  rows[size - 8][8] = 1;
  const bits = code.bytes.flatMap((one) => Array.from({ length: 8 }, (_, i) => (one >> (7 - i)) & 1));
  let at = 0;
  for (let right = size - 1, isUp = true; right > 0; right -= 2, isUp = !isUp) {
    if (right === 6) right = 5;
    for (let i = 0; i < size; i += 1) {
      const row = isUp ? size - 1 - i : i;
      for (const column of [right, right - 1]) {
        if (rows[row][column] !== null) continue;
        rows[row][column] = (bits[at] ?? 0) ^ Number((row + column) % 2 === 0);
        at += 1;
      }
    }
  }
  return rows;
}

// An element with the code of a text, or null.
export function qrCode(text) {
  const rows = modules(text);
  if (!rows) return null;
  const margin = 4;
  const path = rows.flatMap((row, y) => row.map((isDark, x) => (isDark ? `M${x + margin} ${y + margin}h1v1h-1z` : ""))).join("");
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", `0 0 ${rows.length + 2 * margin} ${rows.length + 2 * margin}`);
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", "QR code of the link");
  svg.innerHTML = `<rect width="100%" height="100%" fill="#fff"/><path d="${path}" fill="#000" shape-rendering="crispEdges"/>`;
  return svg;
}
