// Opens a served page in a headless Chromium and waits until all of the given texts are on it, also within custom elements.
//
//     NODE_PATH=node_modules node tools/page_has.mjs http://localhost:6006/#scalars accuracy/training [--screenshot page.png]
import { createRequire } from "node:module";
import { resolve } from "node:path";

const require = createRequire(resolve(process.env.NODE_PATH || "node_modules", "_"));
const puppeteer = require("puppeteer-core");
const words = process.argv.slice(2), at = words.indexOf("--screenshot"), picture = at < 0 ? null : words.splice(at, 2)[1];
const [address, ...texts] = words;
const browser = await puppeteer.launch({ executablePath: process.env.CHROMIUM || "/usr/bin/chromium-headless-shell", args: ["--no-sandbox"] });
const page = await browser.newPage(), problems = [];
page.on("pageerror", error => problems.push(error.message));
await page.setViewport({ width: 1400, height: 1000 });
await page.goto(address);
const missing = () => page.evaluate(texts => {
  const text = node => [...node.childNodes].map(child => child.nodeType === 3 ? child.data : text(child)).join("") + (node.shadowRoot ? text(node.shadowRoot) : "");
  const plain = value => value.replace(/\s+/g, "");
  const shown = plain(text(document.body));
  return texts.filter(wanted => !shown.includes(plain(wanted)));
}, texts);
let left = await missing();
for (const end = Date.now() + 60_000; left.length && Date.now() < end; left = await missing()) await new Promise(done => setTimeout(done, 500));
if (picture) await page.screenshot({ path: picture });
await browser.close();
left.forEach(text => console.error(`${address}: not shown: ${text}`));
problems.forEach(problem => console.error(`${address}: ${problem}`));
process.exit(left.length || problems.length ? 1 : 0);
