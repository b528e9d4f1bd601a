// Opens reports in a headless Chromium, in both themes and at the widths of a phone and a desktop: no console error, no
// overflow, nothing that axe-core complains about. Writes screenshots beside them with --screenshots.
//
//     npm install axe-core puppeteer-core
//     NODE_PATH=node_modules node tools/report_check.mjs runs/digits-1/report.html
import { createRequire } from "node:module";
import { readFileSync } from "node:fs";
import { resolve } from "node:path";

const require = createRequire(resolve(process.env.NODE_PATH || "node_modules", "_"));
const puppeteer = require("puppeteer-core");
const axe = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");
const files = process.argv.slice(2).filter(word => !word.startsWith("--"));
const browser = await puppeteer.launch({ executablePath: process.env.CHROMIUM || "/usr/bin/chromium-headless-shell", args: ["--no-sandbox"] });
const problems = [];

for (const file of files) for (const theme of ["light", "dark"]) for (const width of [390, 1440]) {
  const where = `${file} ${theme} ${width}`, page = await browser.newPage();
  page.on("console", message => { if (["error", "warning"].includes(message.type())) problems.push(`${where}: ${message.text()}`); });
  page.on("pageerror", error => problems.push(`${where}: ${error.message}`));
  // Scripts of this check are not part of the page.
  await page.setBypassCSP(true);
  await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: theme }]);
  await page.setViewport({ width, height: 900 });
  const begin = performance.now();
  await page.goto("file://" + resolve(file), { waitUntil: "load" });
  await page.waitForFunction(() => document.documentElement.dataset.ready === "true");
  const opened = performance.now() - begin;
  const scroll = await page.evaluate(() => document.documentElement.scrollWidth);
  if (scroll > width) problems.push(`${where}: ${scroll} px wide`);
  if (process.argv.includes("--screenshots")) await page.screenshot({ path: `${file}-${theme}-${width}.png`, fullPage: true });
  await page.evaluate(axe);
  const { violations } = await page.evaluate(() => window.axe.run());
  for (const violation of violations) problems.push(`${where}: ${violation.id}: ${violation.help} (${violation.nodes[0].target})`);
  console.log(`${where}: opened in ${opened.toFixed(0)} ms`);
  await page.close();
}
await browser.close();
problems.forEach(problem => console.error(problem));
process.exit(problems.length ? 1 : 0);
