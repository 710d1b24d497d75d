#!/usr/bin/env node
'use strict';
// Compiles spec/hurray.ksy, parses a file, stream or descriptor with the JavaScript parser that comes out, and
// prints the same JSON as every other reader beside this folder:
//
//     node dump.js dump [FORM] FILE...     node dump.js check [FORM] < PATHS      FORM is --stream or --descriptor
//
// The generated parser decides where every field is; nothing about the format is repeated here but the shape of the
// dump. Compiling takes most of a second, so what comes out is kept in node_modules/.cache until the description changes.
//
// Kaitai's JavaScript reads 64-bit integers as doubles, which round from 2^53 on, so the values of 64-bit fields
// are taken again from the places that the parser, compiled in debug mode, reports for them. For the same reason, and
// because its runtime counts in 32 bits, buffers of 2 GiB and more are beyond it.

const { createHash } = require('node:crypto');
const fs = require('node:fs');
const path = require('node:path');
const readline = require('node:readline');
const vm = require('node:vm');
const { KaitaiStream } = require('kaitai-struct');
const YAML = require('yaml');
const { dependencies } = require('./package.json');

const CACHE = path.join(__dirname, 'node_modules', '.cache');
const SPECIFICATION = path.join(__dirname, '..', '..', '..', 'spec', 'hurray.ksy');
const ROOTS = { '--stream': 'TensorStream', '--descriptor': 'BareDescriptor' };
const KINDS = [null, 'string', 'i64', 'u64', 'f64', 'bool', 'bytes', 'array'];

/** What the compiler makes of the description: JavaScript source. */
async function generate(text, specification) {
  const key = createHash('sha256').update(JSON.stringify([text, dependencies])).digest('hex');
  const kept = path.join(CACHE, `hurray-${key}.js`);
  if (fs.existsSync(kept)) return fs.readFileSync(kept, 'utf8');
  const compiler = require('kaitai-struct-compiler');
  const { 'Hurray.js': source } = await compiler.compile('javascript', specification, null, true);
  fs.mkdirSync(CACHE, { recursive: true });
  fs.writeFileSync(`${kept}.${process.pid}`, source);
  fs.renameSync(`${kept}.${process.pid}`, kept);
  return source;
}

async function compile() {
  const text = fs.readFileSync(SPECIFICATION, 'utf8');
  const specification = YAML.parse(text);
  const source = await generate(text, specification);
  const module = { exports: {} };
  vm.runInThisContext(`(function (exports, require) {${source}\n})`, { filename: 'Hurray.js' })(module.exports, require);
  return { specification, Hurray: module.exports.Hurray };
}

const CRC_TABLE = Uint32Array.from({ length: 256 }, (_, byte) => {
  let value = byte;
  for (let bit = 0; bit < 8; bit += 1) value = value & 1 ? (value >>> 1) ^ 0x82f63b78 : value >>> 1;
  return value;
});

function crc32c(bytes) {
  let crc = -1;
  for (const byte of bytes) crc = (crc >>> 8) ^ CRC_TABLE[(crc ^ byte) & 0xff];
  return ~crc >>> 0;
}

const camel = (name) => name.replace(/_([a-z0-9])/g, (_, letter) => letter.toUpperCase());
const snake = (name) => name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`).replace(/^_/, '');
const hexDigits = (value, digits) => value.toString(16).padStart(digits, '0');
const exactText = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });

/** Turns parsed objects into the objects of the dump, led by the specification itself. */
class Shaper {
  constructor(specification, data) {
    this.types = specification.types;
    this.data = data;
  }

  /** The bytes that the parser found a field in. */
  place({ ioOffset, start, end }) {
    return this.data.subarray(ioOffset + start, ioOffset + end);
  }

  scalar(type, value, debug) {
    switch (type) {
      case 'u8': return this.place(debug).readBigUInt64LE();
      case 's8': return this.place(debug).readBigInt64LE();
      case 'f4': return hexDigits(this.place(debug).readUInt32LE(), 8);
      case 'f8': return hexDigits(this.place(debug).readBigUInt64LE(), 16);
      case 'str': return exactText.decode(this.place(debug));
      case undefined: return Buffer.from(value).toString('hex');
      default: return value;
    }
  }

  /** All fields of an object that the parser gave, under their names in the specification; absent ones are null. */
  fields(object) {
    const result = {};
    for (const { id, type, contents } of this.types[snake(object.constructor.name)].seq ?? []) {
      if (contents !== undefined) continue;
      const value = object[camel(id)];
      const debug = object._debug[camel(id)];
      if (value === undefined) result[id] = null;
      else if (Array.isArray(value)) result[id] = value.map((item, i) => this.value(type, item, debug.arr[i]));
      else result[id] = this.value(type, value, debug);
    }
    return result;
  }

  value(type, value, debug) {
    return value !== null && value._debug ? this.fields(value) : this.scalar(type, value, debug);
  }

  descriptor(descriptor) {
    const { body, ...start } = this.fields(descriptor);
    delete body.later_sections;
    if (body.quantization) {
      const { quantization_length, scheme: { parameters, padding: _, ...scheme } } = body.quantization;
      body.quantization = { quantization_length, ...scheme, ...parameters };
    }
    return { ...start, ...body };
  }

  /** The runtime takes the size of a buffer modulo 2^32, and would pass less off as the whole. */
  buffers(descriptor, list) {
    return list.map((bytes, i) => {
      if (bytes.length !== descriptor.body.bufferHandles[i].byteSize) throw new RangeError('a buffer of 2 GiB or more');
      return { size: bytes.length, crc32c: hexDigits(crc32c(bytes), 8) };
    });
  }

  keyValue(entry) {
    const { key, value_tag: tag } = this.fields(entry);
    if (KINDS[tag] === 'array') {
      const element = KINDS[entry.value.elementTag];
      const values = entry.value.values.map((value) => this.payload(value, element));
      return { key, kind: 'array', element_kind: element, value: values };
    }
    return { key, kind: KINDS[tag], value: this.payload(entry.value, KINDS[tag]) };
  }

  payload({ value, _debug: debug }, kind) {
    switch (kind) {
      case 'string': return this.fields(value).text;
      case 'bytes': return this.fields(value).data;
      case 'bool': return value.flag === 1;
      default: return this.scalar({ i64: 's8', u64: 'u8', f64: 'f8' }[kind], value, debug.value);
    }
  }

  indexEntry(entry) {
    const { name_length: _, ...fields } = this.fields(entry);
    return fields;
  }

  file(file) {
    const { index_crc32c: crc, ...trailer } = this.fields(file.trailer);
    const metadata = file.kvMetadata;
    const tensors = file.index.entries.map((entry) => ({
      offset: this.indexEntry(entry).descriptor_offset,
      name: this.indexEntry(entry).name,
      descriptor: this.descriptor(entry.descriptor),
      buffers: this.buffers(entry.descriptor, entry.buffers.map(({ data }) => data)),
    }));
    tensors.sort((a, b) => (a.offset < b.offset ? -1 : 1));
    return {
      form: 'file',
      header: this.fields(file.header),
      kv_metadata: metadata ? metadata.entries.map((entry) => this.keyValue(entry)) : null,
      index: file.index.entries.map((entry) => this.indexEntry(entry)),
      trailer: { ...trailer, index_crc32c: hexDigits(crc, 8) },
      tensors: tensors.map(({ offset: _, ...tensor }) => tensor),
    };
  }

  stream(stream) {
    const tensors = stream.tensors.map(({ descriptor, buffers }) => ({
      descriptor: this.descriptor(descriptor),
      buffers: this.buffers(descriptor, buffers),
    }));
    return { form: 'stream', tensors };
  }
}

function decode({ specification, Hurray }, data, form) {
  const Root = Hurray[ROOTS[form]] ?? Hurray;
  const parsed = new Root(new KaitaiStream(data.buffer.slice(data.byteOffset, data.byteOffset + data.length)));
  parsed._read();
  const shaper = new Shaper(specification, data);
  if (form === '--descriptor') return { form: 'descriptor', descriptor: shaper.descriptor(parsed.descriptor) };
  return form === '--stream' ? shaper.stream(parsed) : shaper.file(parsed);
}

function json(document) {
  return JSON.stringify(document, (_, value) => {
    if (typeof value !== 'bigint') return value;
    return value >= -Number.MAX_SAFE_INTEGER && value <= Number.MAX_SAFE_INTEGER ? Number(value) : String(value);
  });
}

/** The refusals of a generated parser: its runtime's own errors, and a TextDecoder's of text that is not UTF-8. */
function isRefusal(error) {
  return error.constructor.name in KaitaiStream || error instanceof RangeError || error.code === 'ERR_ENCODING_INVALID_ENCODED_DATA';
}

const oneLine = (error) => `${error.name}: ${error.message}`.split('\n')[0];

async function main([command, ...rest]) {
  const form = rest[0] in ROOTS ? rest[0] : null;
  const paths = form ? rest.slice(1) : rest;
  const parser = await compile();
  if (command === 'dump' && paths.length > 0) {
    for (const name of paths) {
      try {
        console.log(json(decode(parser, fs.readFileSync(name), form)));
      } catch (error) {
        if (!isRefusal(error) && !error.syscall) throw error;
        console.error(`${name}: ${oneLine(error)}`);
        return 1;
      }
    }
    return 0;
  }
  if (command === 'check' && paths.length === 0) {
    for await (const name of readline.createInterface({ input: process.stdin })) {
      try {
        decode(parser, fs.readFileSync(name), form);
        console.log('ok');
      } catch (error) {
        if (!isRefusal(error) && !error.syscall) throw error;
        console.log(`refused: ${oneLine(error)}`);
      }
    }
    return 0;
  }
  console.error('usage: dump.js dump [--stream | --descriptor] FILE... | check [--stream | --descriptor]');
  return 2;
}

main(process.argv.slice(2)).then((status) => { process.exitCode = status; });
