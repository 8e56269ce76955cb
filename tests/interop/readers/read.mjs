// Readers of zip archives from npm, which NODE_PATH leads to: the files in the arguments, and a
// line for each member: reader, file, name, size, CRC-32; or reader, file, error; or, if a package
// is not installed, reader, "missing".

import { createRequire } from "node:module";
import { createReadStream, readFileSync } from "node:fs";

const require = createRequire(import.meta.url);

const TABLE = Uint32Array.from({ length: 256 }, (_, value) => {
  for (let bit = 0; bit < 8; bit++) value = (value >>> 1) ^ (value & 1 ? 0xedb88320 : 0);
  return value;
});

function crc32(data) {
  let crc = 0xffffffff;
  for (const byte of data) crc = (crc >>> 8) ^ TABLE[(crc ^ byte) & 255];
  return ~crc >>> 0;
}

async function joined(stream) {
  const parts = [];
  for await (const part of stream) parts.push(part);
  return Buffer.concat(parts);
}

// Each reader gets a package, a file and a function to call with each member's name and data.
const READERS = {
  fflate: ["fflate", async ({ unzipSync }, file, add) => {
    for (const [name, data] of Object.entries(unzipSync(readFileSync(file)))) add(name, data);
  }],
  "fflate stream": ["fflate", async ({ Unzip, UnzipInflate }, file, add) => {
    const unzip = new Unzip((member) => {
      const parts = [];
      member.ondata = (error, data, final) => {
        if (error) throw error;
        parts.push(data);
        if (final) add(member.name, Buffer.concat(parts));
      };
      member.start();
    });
    unzip.register(UnzipInflate);
    for await (const part of createReadStream(file)) unzip.push(part);
    unzip.push(new Uint8Array(0), true);
  }],
  JSZip: ["jszip", async (JSZip, file, add) => {
    const zip = await JSZip.loadAsync(readFileSync(file), { checkCRC32: true });
    for (const member of Object.values(zip.files)) {
      if (!member.dir) add(member.name, await member.async("nodebuffer"));
    }
  }],
  "adm-zip": ["adm-zip", async (AdmZip, file, add) => {
    for (const entry of new AdmZip(file).getEntries()) add(entry.entryName, entry.getData());
  }],
  yauzl: ["yauzl", async (yauzl, file, add) => {
    const zip = await yauzl.openPromise(file, { strictFileNames: true });
    for await (const entry of zip.eachEntry()) {
      add(entry.fileName, await joined(await zip.openReadStreamPromise(entry)));
    }
  }],
  unzipper: ["unzipper", async (unzipper, file, add) => {
    // By default, it finds no end record in front of a comment of more than 58 bytes, and then not
    // the last of several.
    const more = { tailSize: 70_000 };
    const zip = await unzipper.Open.file(file).catch(() => unzipper.Open.file(file, more));
    for (const entry of zip.files) {
      add(entry.path, await entry.buffer());
    }
  }],
  "unzipper stream": ["unzipper", async (unzipper, file, add) => {
    const members = createReadStream(file).pipe(unzipper.Parse({ forceStream: true }));
    for await (const entry of members) add(entry.path, await entry.buffer());
  }],
  "zip.js strict": ["@zip.js/zip.js", async (zip, file, add) => {
    zip.configure({ useWebWorkers: false });
    const options = { strictness: "strict", checkSignature: true, checkOverlappingEntry: true };
    const reader = new zip.ZipReader(new zip.Uint8ArrayReader(readFileSync(file)), options);
    for (const entry of await reader.getEntries()) {
      add(entry.filename, await entry.getData(new zip.Uint8ArrayWriter()));
    }
  }],
};

for (const [reader, [name, read]] of Object.entries(READERS)) {
  let library;
  try {
    library = require(name);
  } catch {
    console.log(`${reader}\tmissing`);
    continue;
  }
  for (const file of process.argv.slice(2)) {
    const lines = [];
    const add = (member, data) =>
      lines.push([reader, file, member, data.length, crc32(data)].join("\t"));
    try {
      await read(library, file, add);
      for (const line of lines) console.log(line);
    } catch (error) {
      console.log(`${reader}\t${file}\t${String(error).replace(/\s+/g, " ")}`);
    }
  }
}
