// A transcript as a Word document: a few files of XML in a zip archive that is not compressed.

import { paragraphsOf, time } from "./exports.js";

const XML = '<?xml version="1.0" encoding="UTF-8" standalone="yes"?>\n';
const OFFICE = "http://schemas.openxmlformats.org";
const WORD = "application/vnd.openxmlformats-officedocument.wordprocessingml";

export const DOCX = `${WORD}.document`;

// Returns a Blob.
export function asDocx(utterances, { title }) {
  const styles = [
    style("Normal", 'w:default="1"', '<w:pPr><w:spacing w:after="120" w:line="288" w:lineRule="auto"/></w:pPr><w:rPr><w:sz w:val="22"/></w:rPr>'),
    style("Title", "", '<w:pPr><w:spacing w:after="240"/></w:pPr><w:rPr><w:b/><w:sz w:val="36"/></w:rPr>'),
    style("Translation", "", '<w:pPr><w:ind w:left="360"/></w:pPr><w:rPr><w:i/><w:color w:val="595959"/></w:rPr>'),
  ];
  const body = [paragraph("Title", [run(title)]), ...paragraphsOf(utterances).flatMap(turn)].join("");
  return zip({
    "[Content_Types].xml": `${XML}<Types xmlns="${OFFICE}/package/2006/content-types"><Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/><Override PartName="/word/document.xml" ContentType="${WORD}.document.main+xml"/><Override PartName="/word/styles.xml" ContentType="${WORD}.styles+xml"/></Types>`,
    "_rels/.rels": relations("officeDocument", "word/document.xml"),
    "word/_rels/document.xml.rels": relations("styles", "styles.xml"),
    "word/styles.xml": `${XML}<w:styles xmlns:w="${OFFICE}/wordprocessingml/2006/main">${styles.join("")}</w:styles>`,
    "word/document.xml": `${XML}<w:document xmlns:w="${OFFICE}/wordprocessingml/2006/main"><w:body>${body}</w:body></w:document>`,
  });
}

function turn({ start, speaker, text, language, translation }) {
  const head = [run(`${time(start)}  `, '<w:color w:val="595959"/>'), ...(speaker ? [run(`${speaker}: `, "<w:b/>")] : [])];
  const isRightToLeft = /^\P{L}*[\p{Script=Arabic}\p{Script=Hebrew}]/u.test(text);
  const direction = isRightToLeft ? "<w:bidi/>" : "";
  const spoken = run(text, `${isRightToLeft ? "<w:rtl/>" : ""}${language ? `<w:lang w:val="${escaped(language)}"/>` : ""}`);
  return [paragraph("Normal", [...head, spoken], direction), ...(translation ? [paragraph("Translation", [run(translation)])] : [])];
}

function style(name, attributes, content) {
  return `<w:style w:type="paragraph" ${attributes} w:styleId="${name}"><w:name w:val="${name}"/>${content}</w:style>`;
}

function paragraph(name, runs, extra = "") {
  return `<w:p><w:pPr><w:pStyle w:val="${name}"/>${extra}</w:pPr>${runs.join("")}</w:p>`;
}

function run(text, properties = "") {
  return `<w:r><w:rPr>${properties}</w:rPr><w:t xml:space="preserve">${escaped(text)}</w:t></w:r>`;
}

function relations(type, target) {
  const relation = `<Relationship Id="r1" Type="${OFFICE}/officeDocument/2006/relationships/${type}" Target="${target}"/>`;
  return `${XML}<Relationships xmlns="${OFFICE}/package/2006/relationships">${relation}</Relationships>`;
}

// Text as XML holds it: without letters that it cannot.
function escaped(text) {
  const names = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" };
  return text.replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f\ufffe\uffff]/g, "").replace(/[&<>"]/g, (sign) => names[sign]);
}

// Files by name as a zip archive.
function zip(files) {
  const [parts, directory] = [[], []];
  let offset = 0;
  for (const [name, content] of Object.entries(files)) {
    const [path, data] = [name, content].map((text) => new TextEncoder().encode(text));
    const common = [20, 0x800, 0, 0, 0x21]; // version, UTF-8, stored, 0:00 of 1980-01-01
    const sizes = [crc32(data), data.length, data.length];
    parts.push(bytes([2, ...common], [4, ...sizes], [2, path.length, 0], 0x04034b50), path, data);
    directory.push(bytes([2, 20, ...common], [4, ...sizes], [2, path.length, 0, 0, 0, 0], 0x02014b50, [4, 0, offset]), path);
    offset += 30 + path.length + data.length;
  }
  const size = directory.reduce((sum, { length }) => sum + length, 0);
  const n = directory.length / 2;
  return new Blob([...parts, ...directory, bytes([2, 0, 0, n, n], [4, size, offset], [2, 0], 0x06054b50)], { type: DOCX });
}

// Numbers in little-endian order, [width, …numbers], after a signature of four bytes.
function bytes(first, second, third, signature, fourth = [4]) {
  const groups = [[4, signature], first, second, third, fourth];
  const found = groups.flatMap(([width, ...numbers]) => numbers.flatMap((number) => Array.from({ length: width }, (_, i) => (number >>> (8 * i)) & 255)));
  return Uint8Array.from(found);
}

function crc32(data) {
  let crc = ~0;
  for (const byte of data) {
    crc ^= byte;
    for (let k = 0; k < 8; k += 1) crc = (crc >>> 1) ^ (0xedb88320 & -(crc & 1));
  }
  return ~crc >>> 0;
}
