// The page is built into the Python package, as three files with fixed names and the notices of
// what they contain, so that users need no Node. The fingerprint of the sources stands in the page: a test compares it with what is here.
import { createHash } from "node:crypto";
import { readdirSync, readFileSync, statSync } from "node:fs";
import { join, relative } from "node:path";
import { defineConfig, type Plugin } from "vite";

const here = import.meta.dirname;

/** All that the built page depends on, in a fixed order. `tests/dashboard/test_page.py` has the same rule. */
function sources(): string[] {
  const walk = (folder: string): string[] =>
    readdirSync(folder).flatMap((name) => {
      const path = join(folder, name);
      return statSync(path).isDirectory() ? walk(path) : [path];
    });
  const top = ["index.html", "package-lock.json", "package.json", "tsconfig.json", "vite.config.ts"];
  return [...top.map((name) => join(here, name)), ...walk(join(here, "src"))]
    .filter((path) => !path.endsWith(".test.ts"))
    .sort((a, b) => (relative(here, a) < relative(here, b) ? -1 : 1));
}

function fingerprint(): string {
  const hash = createHash("sha256");
  for (const path of sources()) {
    hash.update(`${relative(here, path)}\0`);
    hash.update(readFileSync(path));
  }
  return hash.digest("hex");
}

const tellSources: Plugin = {
  name: "tell-sources",
  transformIndexHtml: () => [
    { tag: "meta", attrs: { name: "sources", content: fingerprint() }, injectTo: "head" },
  ],
};

/** The licences of what is bundled lie beside the page. */
const notices: Plugin = {
  name: "notices",
  generateBundle(_options, bundle) {
    const modules = Object.values(bundle).flatMap((chunk) => (chunk.type === "chunk" ? chunk.moduleIds : []));
    const inside = modules.map((id) => /^(.*\/node_modules\/((?:@[^/]+\/)?[^/]+))\//.exec(id)).filter((found) => found !== null);
    const packages = [...new Map(inside.map(([, folder, name]) => [name!, folder!])).entries()].sort();
    const texts = packages.map(([name, folder]) => {
      const { version, license } = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
      return `${name} ${version} (${license})\n\n${readFileSync(join(folder, "LICENSE"), "utf8").trim()}\n`;
    });
    const source = `page.js and page.css contain parts of these packages.\n\n${texts.join(`\n${"-".repeat(78)}\n\n`)}`;
    this.emitFile({ type: "asset", fileName: "THIRD_PARTY.txt", source });
  },
};

export default defineConfig({
  root: here,
  base: "./",
  plugins: [tellSources, notices],
  build: {
    outDir: join(here, "../src/holdfast/dashboard/page"),
    emptyOutDir: true,
    target: "es2022",
    modulePreload: false,
    assetsInlineLimit: 0,
    rollupOptions: {
      output: { entryFileNames: "page.js", assetFileNames: "page.[ext]", codeSplitting: false },
    },
  },
});
