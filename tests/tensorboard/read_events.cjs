// Reads an event file with packages that are not tutti's, and fails where it does not hold what is expected.
//
//   node read_events.cjs <folder with node_modules> <event file> <expected.json>
//
// `tfrecord` takes records apart and checks their checksums, `protobufjs` the messages in them.
const assert = require('node:assert');
const fs = require('node:fs');
const path = require('node:path');

const [packages, eventFile, expectedFile] = process.argv.slice(2);
const from = require('node:module').createRequire(path.resolve(packages, 'package.json'));
const { RecordReader } = from('tfrecord');
const protobuf = from('protobufjs');

// The fields that tutti writes, as TensorBoard numbers them.
const Event = protobuf.parse(`
  syntax = "proto3";
  message Event {
    double wall_time = 1;
    int64 step = 2;
    oneof what { string file_version = 3; Summary summary = 5; SessionLog session_log = 7; }
  }
  message SessionLog { int32 status = 1; }
  message Summary {
    message Value { string tag = 1; oneof value { float simple_value = 2; } }
    repeated Value value = 1;
  }`, { keepCase: true }).root.lookupType('Event');

function plain(event) {
  const read = { wall_time: event.wall_time, step: Number(event.step) };
  if (event.what === 'file_version') read.file_version = event.file_version;
  if (event.what === 'session_log') read.session_start = event.session_log.status === 1;
  if (event.what === 'summary') {
    read.scalars = event.summary.value.map((value) => {
      assert.strictEqual(value.value, 'simple_value');
      return { tag: value.tag, value: value.simple_value };
    });
  }
  return read;
}

async function main() {
  const expected = JSON.parse(fs.readFileSync(expectedFile, 'utf8'));
  for (const event of expected)
    for (const scalar of event.scalars ?? []) scalar.value = Math.fround(Number(scalar.value));
  const reader = await RecordReader.create(eventFile);
  const read = [];
  for (let record; (record = await reader.readRecord()) !== null;) read.push(plain(Event.decode(record)));
  assert.deepStrictEqual(read, expected);
  console.log(`${read.length} events as expected`);
}

main().catch((error) => {
  console.error(error.message);
  process.exit(1);
});
