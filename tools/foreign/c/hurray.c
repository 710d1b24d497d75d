/* hurray.c: writes and reads Hurray files, streams and bare descriptors of block-paged tensors.
 *
 * C11 and its standard library only:   cc -std=c11 -O2 -Wall -Wextra -o hurray hurray.c
 * Commands, cases and the JSON shape are described in ../README.md.
 *
 * Reading works on a cursor with a sticky fault: the first broken rule is kept, every later read gives zero, and whoever
 * loops over a count from the input looks at the fault in the loop's condition. All of the input is judged before a
 * byte of JSON is printed.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROW_MAJOR = 0x01, COLUMN_MAJOR = 0x02, BLOCK_PAGED = 0x0A, COMPOSITE = 0x0B };
enum { HAS_QUANTIZATION = 1, HAS_SHARD = 2, HAS_EXTENSION = 4, HAS_STATISTICS = 8, HAS_MEMBER = 16 };
enum { FLOAT16 = 0x01, BFLOAT16 = 0x02, FLOAT32 = 0x03, INT8 = 0x10, UINT8 = 0x11, UINT32 = 0x15 };
enum { MAX_RANK = 64, MAX_NESTING = 8 };
#define DYNAMIC UINT64_MAX
#define NO_BUFFER UINT32_MAX

static void *allocate(size_t size) {
    void *memory = calloc(1, size ? size : 1);
    if (!memory) {
        fputs("out of memory\n", stderr);
        exit(1);
    }
    return memory;
}

/* ---- CRC-32C ------------------------------------------------------------------------------------------------ */

static uint32_t crc32c(const uint8_t *data, size_t size) {
    static uint32_t table[256];
    if (!table[1])
        for (uint32_t i = 0; i < 256; i++) {
            uint32_t value = i;
            for (int bit = 0; bit < 8; bit++) value = value & 1 ? value >> 1 ^ UINT32_C(0x82F63B78) : value >> 1;
            table[i] = value;
        }
    uint32_t crc = UINT32_MAX;
    while (size--) crc = crc >> 8 ^ table[(crc ^ *data++) & 0xFF];
    return ~crc;
}

/* ---- writing ------------------------------------------------------------------------------------------------ */

typedef struct {
    uint8_t *data;
    size_t size, room;
} Bytes;

static void put(Bytes *out, const void *data, size_t size) {
    if (out->size + size > out->room) {
        out->room = (out->size + size) * 2;
        uint8_t *grown = realloc(out->data, out->room);
        if (!grown) {
            fputs("out of memory\n", stderr);
            exit(1);
        }
        out->data = grown;
    }
    if (size) memcpy(out->data + out->size, data, size);
    out->size += size;
}

static void put_int(Bytes *out, uint64_t value, int width) {
    uint8_t raw[8];
    for (int i = 0; i < width; i++) raw[i] = (uint8_t)(value >> 8 * i);
    put(out, raw, (size_t)width);
}

static void put_zeros(Bytes *out, size_t count) {
    while (count--) put(out, "", 1);
}

static void pad_to(Bytes *out, size_t alignment) {
    put_zeros(out, (alignment - out->size % alignment) % alignment);
}

/* One tensor to be written: everything its descriptor says, and its buffers. */
typedef struct {
    const char *name;
    uint8_t type_tag, layout_tag;
    int rank;
    uint64_t shape[3];
    Bytes layout, quantization; /* the encoded layout fields, and the quantization section without its length */
    int buffer_count;
    Bytes buffers[5];
} Draft;

static Bytes encode_descriptor(const Draft *t) {
    Bytes body = {0}, out = {0};
    put_int(&body, t->quantization.size ? HAS_QUANTIZATION : 0, 4);
    put_int(&body, t->type_tag, 1);
    put_int(&body, t->layout_tag, 1);
    put_int(&body, (uint64_t)t->rank, 4);
    for (int k = 0; k < t->rank; k++) put_int(&body, t->shape[k], 8);
    put_int(&body, 0, 8); /* byte_offset */
    put(&body, t->layout.data, t->layout.size);
    put_int(&body, (uint64_t)t->buffer_count, 1);
    for (int i = 0; i < t->buffer_count; i++) {
        put_int(&body, t->buffers[i].size, 8);
        put_int(&body, 64, 4);
        put_zeros(&body, 4); /* CPU, producer-synced, standard memory */
    }
    if (t->quantization.size) {
        put_int(&body, t->quantization.size, 4);
        put(&body, t->quantization.data, t->quantization.size);
    }
    put(&out, "HRRY\1\0", 6);
    put_int(&out, body.size + 10, 4);
    put(&out, body.data, body.size);
    free(body.data);
    return out;
}

static Bytes paged_layout(uint32_t page_size, uint64_t num_pages, uint32_t num_seqs, int role, uint32_t layer, bool wide) {
    Bytes out = {0};
    put_int(&out, page_size, 4);
    put_int(&out, num_pages, 8);
    put_int(&out, 0, 4); /* paged_axis */
    put_int(&out, num_seqs, 4);
    put_int(&out, (uint64_t)role, 1);
    put_int(&out, layer, 4);
    put_int(&out, wide, 1);
    put_zeros(&out, 6);
    return out;
}

static Bytes integers(int width, int count, ...) {
    Bytes out = {0};
    va_list list;
    va_start(list, count);
    while (count--) put_int(&out, (uint64_t)va_arg(list, int), width);
    va_end(list);
    return out;
}

/* The worked example of the specification: layer 3, key, two sequences of which the second shares page 0. */
static Draft worked_example(void) {
    Draft t = {.name = "layers.3.key", .type_tag = FLOAT16, .layout_tag = BLOCK_PAGED, .rank = 3, .shape = {9, 2, 8}};
    t.layout = paged_layout(4, 5, 2, 0, 3, false);
    t.buffer_count = 3;
    for (int i = 0; i < 5 * 4 * 2 * 8; i++) put_int(&t.buffers[0], 0x3C00 + (uint64_t)i, 2);
    t.buffers[1] = integers(4, 3, 0, 1, 0);
    t.buffers[2] = integers(4, 3, 0, 2, 3);
    return t;
}

static Draft empty_batch(void) {
    Draft t = {.name = "empty", .type_tag = FLOAT32, .layout_tag = BLOCK_PAGED, .rank = 3, .shape = {0, 2, 8}};
    t.layout = paged_layout(16, 0, 0, 1, UINT32_MAX, true);
    t.buffer_count = 3;
    t.buffers[2] = integers(8, 1, 0);
    return t;
}

static Draft int8_page_slot(void) {
    Draft t = {.name = "cache", .type_tag = INT8, .layout_tag = BLOCK_PAGED, .rank = 3, .shape = {9, 2, 8}};
    t.layout = paged_layout(4, 5, 2, 2, UINT32_MAX, false);
    t.quantization = integers(1, 4, 3, 1, 0, 0); /* per-block affine, version 1, asymmetric */
    put_int(&t.quantization, 0, 4);              /* axis */
    put_int(&t.quantization, 4, 4);              /* block_size = page_size */
    put_int(&t.quantization, 3, 4);              /* scales */
    put_int(&t.quantization, 4, 4);              /* zero points */
    put_int(&t.quantization, FLOAT16, 1);
    put_zeros(&t.quantization, 3);
    t.buffer_count = 5;
    for (int i = 0; i < 5 * 4 * 2 * 8; i++) put_int(&t.buffers[0], (uint64_t)(7 * i + 3), 1);
    t.buffers[1] = integers(4, 3, 0, 1, 0);
    t.buffers[2] = integers(4, 3, 0, 2, 3);
    for (int slot = 0; slot < 20; slot++) {
        put_int(&t.buffers[3], 0x3000 + 8 * (uint64_t)slot, 2);
        put_int(&t.buffers[4], (uint64_t)(slot - 10), 4);
    }
    return t;
}

static Draft multi_layer(const char *name, int layer, int role) {
    Draft t = {.name = name, .type_tag = BFLOAT16, .layout_tag = BLOCK_PAGED, .rank = 3, .shape = {17, 2, 4}};
    t.layout = paged_layout(4, 6, 3, role, (uint32_t)layer, true);
    t.buffer_count = 3;
    for (int i = 0; i < 6 * 4 * 2 * 4; i++) put_int(&t.buffers[0], (uint64_t)(i * 2477 + layer * 641 + role * 97), 2);
    t.buffers[1] = integers(8, 5, 3, 1, 4, 3, 5);
    t.buffers[2] = integers(8, 4, 0, 3, 5, 5);
    return t;
}

static Draft flat(const char *name, uint8_t type_tag, uint64_t length, Bytes data) {
    Draft t = {.name = name, .type_tag = type_tag, .layout_tag = ROW_MAJOR, .rank = 1, .shape = {length}};
    t.buffer_count = 1;
    t.buffers[0] = data;
    return t;
}

static int multi_layers(Draft *drafts) {
    static const char *const names[] = {"layers.0.key", "layers.0.value", "layers.1.key", "layers.1.value"};
    for (int i = 0; i < 4; i++) drafts[i] = multi_layer(names[i], i / 2, i % 2);
    return 4;
}

static void put_key(Bytes *kv, const char *key, uint8_t tag) {
    put_int(kv, strlen(key), 2);
    put(kv, key, strlen(key));
    put_int(kv, tag, 1);
}

static void put_text(Bytes *kv, const char *text) {
    put_int(kv, strlen(text), 4);
    put(kv, text, strlen(text));
}

static void put_array(Bytes *kv, const char *key, uint8_t element_tag, uint32_t count) {
    put_key(kv, key, 7);
    put_int(kv, element_tag, 1);
    put_int(kv, count, 4);
}

/* The metadata of the multi case; ten entries without the checksums. */
static void put_multi_metadata(Bytes *kv) {
    put_key(kv, "hurray_wire.snapshot", 2);
    put_int(kv, 1, 8);
    put_key(kv, "producer", 1);
    put_text(kv, "foreign");
    put_key(kv, "model.id", 1);
    put_text(kv, "llama-\xCE\xB2");
    put_key(kv, "n", 2);
    put_int(kv, (uint64_t)-7, 8);
    put_key(kv, "u", 3);
    put_int(kv, UINT64_MAX, 8);
    put_key(kv, "f", 4);
    double tenth = 0.1;
    uint64_t bits;
    memcpy(&bits, &tenth, 8);
    put_int(kv, bits, 8);
    put_key(kv, "b", 5);
    put_int(kv, 1, 1);
    put_key(kv, "raw", 6);
    put_int(kv, 3, 4);
    put(kv, "\x00\xFF\x01", 3);
    put_array(kv, "arr", 1, 2);
    put_text(kv, "a");
    put_text(kv, "");
    put_array(kv, "ints", 2, 2);
    put_int(kv, (uint64_t)-1, 8);
    put_int(kv, 2, 8);
}

enum { FLAG_METADATA = 1, FLAG_SORTED = 2, FLAG_CRC = 4 };
enum Metadata { WITHOUT_METADATA, MULTI_METADATA, PLAIN_METADATA };

typedef struct {
    const char *name;
    uint64_t descriptor_offset, data_offset, data_length;
    uint32_t descriptor_length;
} Entry;

static int by_name(const void *a, const void *b) {
    return strcmp(((const Entry *)a)->name, ((const Entry *)b)->name);
}

static Bytes encode_file(const Draft *drafts, int count, uint32_t flags, uint32_t alignment, uint64_t hint,
                         enum Metadata metadata) {
    Bytes out = {0}, kv = {0}, index = {0}, sums = {0};
    Entry entries[8] = {{0}};
    put(&out, "HRRYFILE\1\0\0\0", 12);
    put_int(&out, flags, 4);
    put_int(&out, alignment, 4);
    put_int(&out, 64, 8);
    put_int(&out, hint, 8);
    put_zeros(&out, 28);
    for (int i = 0; i < count; i++) {
        Bytes descriptor = encode_descriptor(&drafts[i]);
        pad_to(&out, 8);
        Entry entry = {.name = drafts[i].name, .descriptor_offset = out.size, .descriptor_length = (uint32_t)descriptor.size};
        put(&out, descriptor.data, descriptor.size);
        put_int(&sums, crc32c(descriptor.data, descriptor.size), 8);
        for (int b = 0; b < drafts[i].buffer_count; b++) {
            const Bytes *buffer = &drafts[i].buffers[b];
            pad_to(&out, alignment);
            if (b == 0) entry.data_offset = out.size;
            put(&out, buffer->data, buffer->size);
            put_int(&sums, crc32c(buffer->data, buffer->size), 8);
        }
        entry.data_length = out.size - entry.data_offset;
        entries[i] = entry;
        free(descriptor.data);
    }
    if (metadata == MULTI_METADATA) {
        put_int(&kv, 11, 4);
        put_multi_metadata(&kv);
        put_array(&kv, "hurray_wire.crc32c", 3, (uint32_t)(sums.size / 8));
        put(&kv, sums.data, sums.size);
    } else if (metadata == PLAIN_METADATA) {
        put_int(&kv, 2, 4);
        put_key(&kv, "producer", 1);
        put_text(&kv, "foreign");
        put_key(&kv, "tensor_count", 2);
        put_int(&kv, (uint64_t)count, 8);
    }
    pad_to(&out, 8);
    uint64_t kv_offset = kv.size ? out.size : 0;
    put(&out, kv.data, kv.size);
    if (flags & FLAG_SORTED) qsort(entries, (size_t)count, sizeof *entries, by_name);
    put_int(&index, (uint64_t)count, 8);
    for (int i = 0; i < count; i++) {
        put_int(&index, strlen(entries[i].name), 2);
        put(&index, entries[i].name, strlen(entries[i].name));
        put_int(&index, entries[i].descriptor_offset, 8);
        put_int(&index, entries[i].descriptor_length, 4);
        put_int(&index, entries[i].data_offset, 8);
        put_int(&index, entries[i].data_length, 8);
        put_int(&index, 0, 4);
    }
    pad_to(&out, 8);
    uint64_t index_offset = out.size;
    put(&out, index.data, index.size);
    put_int(&out, index_offset, 8);
    put_int(&out, index.size, 8);
    put_int(&out, kv_offset, 8);
    put_int(&out, kv.size, 4);
    put_int(&out, flags & FLAG_CRC ? crc32c(index.data, index.size) : 0, 4);
    put_zeros(&out, 4);
    put(&out, "HRRY", 4);
    free(kv.data);
    free(index.data);
    free(sums.data);
    return out;
}

static Bytes encode_stream(const Draft *drafts, int count) {
    Bytes out = {0};
    for (int i = 0; i < count; i++) {
        Bytes descriptor = encode_descriptor(&drafts[i]);
        put(&out, descriptor.data, descriptor.size);
        for (int b = 0; b < drafts[i].buffer_count; b++) put(&out, drafts[i].buffers[b].data, drafts[i].buffers[b].size);
        free(descriptor.data);
    }
    return out;
}

/* False if there is no such case. */
static bool encode_case(const char *name, Bytes *out) {
    Draft drafts[8] = {{0}};
    if (!strcmp(name, "spec_example")) {
        drafts[0] = worked_example();
        *out = encode_file(drafts, 1, FLAG_CRC, 4096, UINT64_MAX, WITHOUT_METADATA);
    } else if (!strcmp(name, "multi")) {
        int count = multi_layers(drafts);
        drafts[count++] = flat("seq_lens", UINT32, 3, integers(4, 3, 10, 7, 0));
        *out = encode_file(drafts, count, FLAG_METADATA | FLAG_CRC, 4096, UINT64_MAX, MULTI_METADATA);
    } else if (!strcmp(name, "empty_batch")) {
        drafts[0] = empty_batch();
        *out = encode_file(drafts, 1, 0, 4096, 1, WITHOUT_METADATA);
    } else if (!strcmp(name, "int8_page_slot")) {
        drafts[0] = int8_page_slot();
        *out = encode_file(drafts, 1, FLAG_CRC, 4096, UINT64_MAX, WITHOUT_METADATA);
    } else if (!strcmp(name, "unflagged_metadata")) {
        drafts[0] = worked_example();
        drafts[1] = flat("bytes", UINT8, 5, integers(1, 5, 1, 2, 3, 4, 5));
        *out = encode_file(drafts, 2, FLAG_SORTED | FLAG_CRC, 8192, UINT64_MAX, PLAIN_METADATA);
    } else if (!strcmp(name, "stream")) {
        drafts[0] = worked_example();
        drafts[1] = empty_batch();
        *out = encode_stream(drafts, 2);
    } else if (!strcmp(name, "group_stream")) {
        Bytes kv = {0};
        put_int(&kv, 10, 4);
        put_multi_metadata(&kv);
        drafts[0] = (Draft){.type_tag = UINT8, .layout_tag = COMPOSITE};
        drafts[0].layout = integers(1, 4, 3, 0, 0, 0); /* a group */
        put_int(&drafts[0].layout, 6, 4);
        drafts[1] = flat("", UINT8, kv.size, kv);
        drafts[2] = flat("", UINT32, 3, integers(4, 3, 10, 7, 0));
        multi_layers(drafts + 3);
        *out = encode_stream(drafts, 7);
    } else {
        return false;
    }
    for (int i = 0; i < 8; i++) {
        free(drafts[i].layout.data);
        free(drafts[i].quantization.data);
        for (int b = 0; b < 5; b++) free(drafts[i].buffers[b].data);
    }
    return true;
}

/* ---- reading ------------------------------------------------------------------------------------------------ */

typedef struct {
    const uint8_t *data;
    uint64_t at, end;
    const char *broken; /* the first broken rule, or NULL */
    uint64_t where;
    bool unsupported; /* the broken rule is this program's, not the format's */
} Cursor;

static bool need(Cursor *c, bool good, const char *rule) {
    if (!good && !c->broken) {
        c->broken = rule;
        c->where = c->at;
    }
    return !c->broken;
}

static const uint8_t *take(Cursor *c, uint64_t size) {
    if (!need(c, size <= c->end - c->at, "the bytes end inside a field")) return NULL;
    c->at += size;
    return c->data + c->at - size;
}

static uint64_t load(const uint8_t *raw, int width) {
    uint64_t value = 0;
    for (int i = width - 1; i >= 0; i--) value = value << 8 | raw[i];
    return value;
}

static uint64_t get(Cursor *c, int width) {
    const uint8_t *raw = take(c, (uint64_t)width);
    return raw ? load(raw, width) : 0;
}

static bool all_zero(const uint8_t *raw, uint64_t size) {
    while (size--)
        if (*raw++) return false;
    return true;
}

static void reserved(Cursor *c, uint64_t size) {
    const uint8_t *raw = take(c, size);
    need(c, !raw || all_zero(raw, size), "reserved bytes are zero");
}

static bool power_of_two(uint64_t value) { return value && !(value & (value - 1)); }

/* Saturating arithmetic: no buffer holds UINT64_MAX bytes, so a saturated need is never met. */
static uint64_t times(uint64_t a, uint64_t b) { return b && a > UINT64_MAX / b ? UINT64_MAX : a * b; }
static uint64_t plus(uint64_t a, uint64_t b) { return a > UINT64_MAX - b ? UINT64_MAX : a + b; }

typedef struct {
    uint64_t byte_size;
    uint32_t alignment;
    uint8_t device_tag, sync_mode, memory_class;
} Handle;

typedef struct {
    uint32_t page_size, paged_axis, num_seqs, layer_index;
    uint64_t num_pages;
    uint8_t kv_role, index_type;
} Paged;

typedef struct {
    uint8_t rule, combine_op;
    uint32_t member_count;
} Composite;

typedef struct {
    uint32_t length, scale, axis, block_size, scale_buffer, zero_buffer;
    int32_t zero_point;
    uint16_t flags;
    uint8_t tag, version, scale_type;
} Quantization;

typedef struct {
    uint64_t nnz, values[6]; /* sparsity_ratio .. value_stddev */
    uint32_t mask;
    uint8_t bytes[4]; /* nm_n, nm_m, has_nan, has_inf */
} Statistics;

typedef struct {
    uint32_t bit_width, exponent_bias;
    uint8_t packing_factor, is_float, is_signed, sign_bits, exponent_bits, mantissa_bits, has_nan, has_inf;
} Extension;

typedef struct {
    uint8_t version_major, version_minor, type_tag, layout_tag, member_role, buffer_count;
    uint32_t length, flags, rank;
    uint64_t byte_offset;
    uint64_t *shape, *parent_shape, *shard_offset; /* rank numbers each, in one allocation that starts at shape */
    Paged paged;
    Composite composite;
    Handle *handles;
    Quantization quantization;
    Statistics statistics;
    Extension extension;
} Descriptor;

typedef struct {
    const uint8_t *data;
    uint64_t size;
} Slice;

typedef struct {
    Slice name;
    uint64_t descriptor_offset, data_offset, data_length;
    uint32_t descriptor_length;
    uint64_t position; /* in the index */
    Descriptor descriptor;
    const uint8_t **buffers;
} Tensor;

/* Bits from one element to the next, or 0 for a type that does not exist. */
static uint64_t element_bits(const Descriptor *d) {
    switch (d->type_tag) {
    case 0x20: return 1;
    case 0x4A: case 0x4B: return 2;
    case 0x43: case 0x48: case 0x49: return 4;
    case 0x44: case 0x45: return 6;
    case 0x10: case 0x11: case 0x40: case 0x41: case 0x42: return 8;
    case 0x01: case 0x02: case 0x12: case 0x13: return 16;
    case 0x03: case 0x14: case 0x15: return 32;
    case 0x04: case 0x16: case 0x17: case 0x50: return 64;
    case 0x46: case 0x51: return 128;
    }
    uint64_t width = d->extension.bit_width;
    return width < 8 ? width : (width + 7) / 8 * 8;
}

static bool private_tag(uint8_t tag) { return tag >= 0xF0 && tag <= 0xFE; }

static uint64_t byte_length(uint64_t count, uint64_t bits) {
    if (bits == 6) return times(count / 4 + (count % 4 != 0), 3);
    if (bits < 8) return count / (8 / bits) + (count % (8 / bits) != 0);
    return times(count, bits / 8);
}

static bool has_dimension(const Descriptor *d, uint64_t size) {
    for (uint32_t k = 0; k < d->rank; k++)
        if (d->shape[k] == size) return true;
    return false;
}

static void read_handle(Cursor *c, Handle *h) {
    h->byte_size = get(c, 8);
    h->alignment = (uint32_t)get(c, 4);
    uint8_t device = h->device_tag = (uint8_t)get(c, 1);
    h->sync_mode = (uint8_t)get(c, 1);
    uint8_t memory = h->memory_class = (uint8_t)get(c, 1);
    reserved(c, 1);
    need(c, power_of_two(h->alignment), "a buffer's alignment is a power of two");
    need(c, h->alignment >= 64 || !h->byte_size, "a buffer that is not empty is aligned to 64 or more");
    need(c, device <= 8 || private_tag(device), "device_tag is known");
    need(c, h->sync_mode <= 2 && (device || !h->sync_mode), "sync_mode is known, and 0 on the CPU");
    need(c, memory <= 3 || (private_tag(memory) && private_tag(device)), "memory_class is known");
    bool no_host_memory = device == 5 && (memory == 1 || memory == 2);
    bool no_peer = memory == 3 && device != 1 && device != 2 && device != 4 && device != 7;
    need(c, !no_host_memory && !no_peer, "the device has such memory");
}

static void read_paged(Cursor *c, Descriptor *d) {
    Paged *p = &d->paged;
    need(c, d->rank == 3, "a block-paged tensor has rank 3");
    need(c, !(d->flags & HAS_SHARD), "a block-paged tensor has no shard section");
    p->page_size = (uint32_t)get(c, 4);
    p->num_pages = get(c, 8);
    p->paged_axis = (uint32_t)get(c, 4);
    p->num_seqs = (uint32_t)get(c, 4);
    p->kv_role = (uint8_t)get(c, 1);
    p->layer_index = (uint32_t)get(c, 4);
    p->index_type = (uint8_t)get(c, 1);
    reserved(c, 6);
    need(c, p->page_size >= 1, "page_size is at least 1");
    need(c, p->paged_axis == 0, "paged_axis is 0");
    need(c, p->kv_role <= 2, "kv_role is key, value or fused");
    need(c, p->index_type <= 1, "block_table_index_type is 0 or 1");
    need(c, d->byte_offset == 0, "byte_offset of a block-paged tensor is 0");
}

static void read_composite(Cursor *c, Descriptor *d) {
    Composite *g = &d->composite;
    g->rule = (uint8_t)get(c, 1);
    g->combine_op = (uint8_t)get(c, 1);
    reserved(c, 2);
    g->member_count = (uint32_t)get(c, 4);
    need(c, (g->rule >= 1 && g->rule <= 3) || private_tag(g->rule), "composition_rule is known");
    need(c, g->rule == 2 ? g->combine_op == 1 || g->combine_op == 2 : g->combine_op == 0, "combine_op fits the rule");
    need(c, g->member_count != UINT32_MAX, "member_count is definite");
    need(c, d->byte_offset == 0, "byte_offset of a composite head is 0");
    need(c, !(d->flags & (HAS_QUANTIZATION | HAS_MEMBER)), "a composite head has no quantization or member section");
}

static bool integer_range(uint8_t type, int32_t value) {
    int bits;
    bool is_signed = !(type & 1);
    switch (type) {
    case 0x10: case 0x11: bits = 8; break;
    case 0x12: case 0x13: bits = 16; break;
    case 0x14: case 0x15: bits = 32; break;
    case 0x48: case 0x49: bits = 4; break;
    case 0x4A: case 0x4B: bits = 2; break;
    default: return false;
    }
    int64_t low = is_signed ? -(INT64_C(1) << (bits - 1)) : 0, high = low + (INT64_C(1) << bits) - 1;
    return value >= low && value <= high;
}

static void read_quantization(Cursor *outer, Descriptor *d) {
    Quantization *q = &d->quantization;
    q->length = (uint32_t)get(outer, 4);
    const uint8_t *section = take(outer, q->length);
    if (!section) return;
    Cursor inner = *outer, *c = &inner;
    c->at = outer->at - q->length;
    c->end = outer->at;
    uint8_t type = d->type_tag, tag = q->tag = (uint8_t)get(c, 1);
    bool narrow = type == 0x10 || type == 0x11 || (type >= 0x48 && type <= 0x4B);
    q->version = (uint8_t)get(c, 1);
    q->flags = (uint16_t)get(c, 2);
    need(c, tag >= 1 && tag <= 5, "scheme_tag is 1 to 5");
    need(c, q->version == 1, "scheme_version is 1");
    need(c, q->flags <= (tag == 2 || tag == 3), "only schemes 2 and 3 have a flag, SYMMETRIC");
    if (tag == 1) {
        q->scale = (uint32_t)get(c, 4);
        q->zero_point = (int32_t)get(c, 4);
        reserved(c, 4);
        bool finite = (q->scale >> 23 & 0xFF) != 0xFF;
        need(c, finite && q->scale << 1, "scale is finite and not 0");
        need(c, integer_range(type, 0), "per-tensor affine has integer storage of up to 32 bits");
        need(c, integer_range(type, q->zero_point), "zero_point is in the storage type's range");
    } else {
        q->axis = (uint32_t)get(c, 4);
        if (tag > 2) q->block_size = (uint32_t)get(c, 4);
        q->scale_buffer = (uint32_t)get(c, 4);
        q->zero_buffer = NO_BUFFER;
        if (tag <= 3) {
            q->zero_buffer = (uint32_t)get(c, 4);
            q->scale_type = (uint8_t)get(c, 1);
            reserved(c, 3);
            need(c, (q->zero_buffer == NO_BUFFER) == q->flags, "exactly a symmetric scheme has no zero points");
        }
        need(c, q->axis < d->rank, "the quantization axis is below rank");
        need(c, tag == 2 || power_of_two(q->block_size), "block_size is a power of two");
    }
    if (tag == 2) {
        need(c, integer_range(type, 0) && q->scale_type == FLOAT32, "per-channel affine is integers with float32 scales");
    } else if (tag == 3) {
        need(c, narrow && q->scale_type >= 1 && q->scale_type <= 3, "per-block affine is narrow integers, float scales");
        need(c, q->block_size >= 2, "block_size is 2 or more");
    } else if (tag == 4) {
        need(c, type == 0x49 && q->block_size >= 8, "NF4 is uint4 in blocks of 8 or more");
    } else if (tag == 5) {
        bool storage = type == INT8 || type == 0x48 || type == 0x40 || type == 0x41 || (type >= 0x43 && type <= 0x45);
        need(c, storage && q->block_size >= 16 && q->block_size <= 2048, "MXFP storage and block_size are allowed ones");
        uint64_t size = c->broken ? 0 : d->shape[q->axis];
        need(c, size == DYNAMIC || (size && size % q->block_size == 0), "shape[axis] is a multiple of MXFP's block_size");
    }
    if (d->layout_tag == BLOCK_PAGED && tag != 1) {
        bool channel = tag == 2 && (q->axis == 1 || q->axis == 2);
        bool slot = tag == 3 && q->axis == 0 && q->block_size == d->paged.page_size;
        need(c, channel || slot, "the scheme composes with pages");
    }
    reserved(c, c->end - c->at); /* padding */
    outer->broken = c->broken;
    outer->where = c->where;
}

static void read_sections(Cursor *c, Descriptor *d) {
    if (d->flags & HAS_QUANTIZATION) read_quantization(c, d);
    if (d->flags & HAS_SHARD) {
        for (uint32_t k = 0; k < d->rank; k++) d->parent_shape[k] = get(c, 8);
        for (uint32_t k = 0; k < d->rank; k++) d->shard_offset[k] = get(c, 8);
        for (uint32_t k = 0; k < d->rank && !c->broken; k++) {
            need(c, d->shape[k] != DYNAMIC && d->parent_shape[k] != DYNAMIC, "a shard has no dynamic dimension");
            bool inside = d->shard_offset[k] <= d->parent_shape[k] && d->shape[k] <= d->parent_shape[k] - d->shard_offset[k];
            need(c, inside, "a shard lies inside its parent");
        }
    }
    if (d->flags & HAS_STATISTICS) {
        Statistics *s = &d->statistics;
        s->mask = (uint32_t)get(c, 4);
        need(c, s->mask < 64, "computed_mask has six bits");
        reserved(c, 4);
        s->nnz = get(c, 8);
        for (int i = 0; i < 6; i++) s->values[i] = get(c, 8);
        for (int i = 0; i < 4; i++) s->bytes[i] = (uint8_t)get(c, 1);
        bool computed = s->mask >> 5 & 1;
        need(c, !computed || (s->bytes[2] <= 1 && s->bytes[3] <= 1), "has_nan and has_inf are 0 or 1 where computed");
        reserved(c, 4);
    }
    if (d->flags & HAS_EXTENSION) {
        Extension *e = &d->extension;
        e->bit_width = (uint32_t)get(c, 4);
        e->packing_factor = (uint8_t)get(c, 1);
        e->is_float = (uint8_t)get(c, 1);
        e->is_signed = (uint8_t)get(c, 1);
        e->sign_bits = (uint8_t)get(c, 1);
        e->exponent_bits = (uint8_t)get(c, 1);
        e->mantissa_bits = (uint8_t)get(c, 1);
        reserved(c, 2);
        e->exponent_bias = (uint32_t)get(c, 4);
        e->has_nan = (uint8_t)get(c, 1);
        e->has_inf = (uint8_t)get(c, 1);
        reserved(c, 2);
        uint32_t width = e->bit_width;
        need(c, width >= 8 || width == 1 || width == 2 || width == 4, "bit_width is 1, 2, 4 or at least 8");
        need(c, c->broken || e->packing_factor == (width >= 8 ? 1 : 8 / width), "packing_factor follows from bit_width");
        need(c, (e->is_float | e->is_signed | e->has_nan | e->has_inf) <= 1, "what is yes or no is 0 or 1");
        bool plain = !(e->sign_bits | e->exponent_bits | e->mantissa_bits | e->has_nan | e->has_inf) && !e->exponent_bias;
        need(c, e->is_float || plain, "an integer type has no float fields");
    }
    if (d->flags & HAS_MEMBER) {
        d->member_role = (uint8_t)get(c, 1);
        need(c, d->member_role <= 1, "a member is a correction or a base");
        reserved(c, 15);
    }
}

/* A saturated count, kept apart from DYNAMIC: it is known to be more than any buffer holds. */
static uint64_t known(uint64_t count) { return count == DYNAMIC ? DYNAMIC - 1 : count; }

/* Elements in buffer 0, or DYNAMIC where a dynamic dimension hides their number. */
static uint64_t element_count(const Descriptor *d) {
    bool paged = d->layout_tag == BLOCK_PAGED;
    uint64_t count = paged ? times(d->paged.num_pages, d->paged.page_size) : 1;
    for (uint32_t k = paged; k < d->rank; k++) {
        if (d->shape[k] == DYNAMIC) return DYNAMIC;
        if (count && d->shape[k]) count = times(count, d->shape[k]);
        else count = 0;
    }
    return known(count);
}

/* Scales of a scheme whose parameters lie in buffers, or DYNAMIC. */
static uint64_t scale_count(const Descriptor *d) {
    const Quantization *q = &d->quantization;
    if (d->layout_tag == BLOCK_PAGED && q->tag == 3) return known(times(d->paged.num_pages, d->paged.page_size));
    if (q->tag == 2) return d->shape[q->axis];
    uint64_t count = d->shape[q->axis] / q->block_size + (d->shape[q->axis] % q->block_size != 0);
    for (uint32_t k = 0; k < d->rank; k++) {
        if (d->shape[k] == DYNAMIC) return DYNAMIC;
        if (k != q->axis) count = times(count, d->shape[k]);
    }
    return known(count);
}

/* Every buffer must be there and hold at least what the layout and the scheme need. */
static void judge_buffers(Cursor *c, const Descriptor *d) {
    if (c->broken || d->layout_tag == COMPOSITE) return;
    const Quantization *q = &d->quantization;
    const Paged *p = &d->paged;
    bool paged = d->layout_tag == BLOCK_PAGED, scaled = d->flags & HAS_QUANTIZATION && q->tag != 1;
    uint32_t own = paged ? 3 : 1;
    if (scaled) {
        bool zeros = q->zero_buffer != NO_BUFFER;
        need(c, q->scale_buffer < d->buffer_count && (!zeros || q->zero_buffer < d->buffer_count),
             "a parameter buffer's index is below buffer_count");
        need(c, q->scale_buffer >= own && (!zeros || q->zero_buffer >= own), "a parameter buffer is not a layout buffer");
    }
    need(c, scaled ? d->buffer_count > own : d->buffer_count == own, "buffer_count fits the layout and its scales");
    if (c->broken) return;

    uint64_t bits = element_bits(d), elements = element_count(d);
    if (elements != DYNAMIC) {
        uint64_t size = plus(d->byte_offset, byte_length(elements, bits));
        need(c, d->handles[0].byte_size >= size, "buffer 0 holds every element");
    }
    if (paged) {
        uint64_t width = p->index_type ? 8 : 4;
        need(c, d->handles[1].byte_size % width == 0, "block_table holds whole page ids");
        need(c, d->handles[2].byte_size >= (p->num_seqs + UINT64_C(1)) * width, "seq_ptr holds num_seqs + 1 offsets");
    }
    uint64_t scales = scaled ? scale_count(d) : DYNAMIC;
    if (scales == DYNAMIC) return;
    uint64_t width = q->tag == 5 ? 1 : q->tag == 3 && q->scale_type != FLOAT32 ? 2 : 4, zeros = times(scales, 4);
    bool shared = q->zero_buffer == q->scale_buffer;
    need(c, d->handles[q->scale_buffer].byte_size >= plus(times(scales, width), shared ? zeros : 0), "every scale is there");
    if (q->zero_buffer != NO_BUFFER && !shared)
        need(c, d->handles[q->zero_buffer].byte_size >= zeros, "every zero point is there");
}

/* Reads the descriptor at the cursor, which afterwards stands behind it. */
static void read_descriptor(Cursor *outer, Descriptor *d) {
    Cursor inner = *outer, *c = &inner;
    const uint8_t *magic = take(c, 4);
    need(c, magic && !memcmp(magic, "HRRY", 4), "a descriptor starts with HRRY");
    d->version_major = (uint8_t)get(c, 1);
    d->version_minor = (uint8_t)get(c, 1);
    need(c, d->version_major == 1, "version_major is 1");
    d->length = (uint32_t)get(c, 4);
    need(c, d->length >= 20, "descriptor_length is at least 20");
    need(c, d->length <= outer->end - outer->at, "the descriptor is there to its end");
    if (!c->broken) c->end = outer->at + d->length;
    d->flags = (uint32_t)get(c, 4);
    d->type_tag = (uint8_t)get(c, 1);
    d->layout_tag = (uint8_t)get(c, 1);
    d->rank = (uint32_t)get(c, 4);
    need(c, d->flags < 32, "flags has five bits");
    need(c, d->rank <= MAX_RANK, "rank is at most 64");
    need(c, element_bits(d) || private_tag(d->type_tag), "type_tag is known");
    need(c, !(d->flags & HAS_EXTENSION) == !private_tag(d->type_tag), "exactly a private type has the extension section");
    if (c->broken) d->rank = 0;
    d->shape = allocate(3 * d->rank * sizeof *d->shape);
    d->parent_shape = d->shape + d->rank;
    d->shard_offset = d->parent_shape + d->rank;
    for (uint32_t k = 0; k < d->rank; k++) d->shape[k] = get(c, 8);
    d->byte_offset = get(c, 8);
    if (!c->broken) {
        uint8_t tag = d->layout_tag;
        if (tag == BLOCK_PAGED) read_paged(c, d);
        else if (tag == COMPOSITE) read_composite(c, d);
        else if (tag >= 0x03 && (tag <= 0x09 || tag == 0x40 || private_tag(tag)))
            c->unsupported = !need(c, false, "this program knows no such layout");
        else need(c, tag == ROW_MAJOR || tag == COLUMN_MAJOR, "layout_tag is known");
    }
    d->buffer_count = (uint8_t)get(c, 1);
    need(c, !d->buffer_count == (d->layout_tag == COMPOSITE), "exactly a composite head has no buffers");
    d->handles = allocate(d->buffer_count * sizeof *d->handles);
    for (int i = 0; i < d->buffer_count && !c->broken; i++) {
        read_handle(c, &d->handles[i]);
        bool same = d->handles[i].device_tag == d->handles[0].device_tag &&
                    d->handles[i].memory_class == d->handles[0].memory_class;
        need(c, same, "all buffers are in one memory of one device");
    }
    need(c, !d->buffer_count || d->byte_offset <= d->handles[0].byte_size, "byte_offset is inside buffer 0");
    read_sections(c, d);
    need(c, d->version_minor || c->at == c->end, "descriptor_length is what the sections take");
    judge_buffers(c, d);
    outer->broken = c->broken;
    outer->where = c->where;
    outer->unsupported = c->unsupported;
    if (!c->broken) outer->at = c->end;
}

/* The invariants of block_table and seq_ptr. */
static void judge_pages(Cursor *c, const Tensor *t) {
    const Descriptor *d = &t->descriptor;
    int width = d->paged.index_type ? 8 : 4;
    uint64_t pages = d->handles[1].byte_size / (uint64_t)width, previous = 0;
    for (uint64_t s = 0; s <= d->paged.num_seqs && !c->broken; s++) {
        uint64_t offset = load(t->buffers[2] + s * (uint64_t)width, width);
        need(c, s || !offset, "seq_ptr starts with 0");
        need(c, offset >= previous, "seq_ptr never decreases");
        previous = offset;
    }
    need(c, previous == pages, "seq_ptr ends with the length of block_table");
    for (uint64_t i = 0; i < pages && !c->broken; i++)
        need(c, load(t->buffers[1] + i * (uint64_t)width, width) < d->paged.num_pages, "a page id is below num_pages");
}

/* What the bytes in the buffers must be. */
static void judge_payload(Cursor *c, const Tensor *t) {
    const Descriptor *d = &t->descriptor;
    const Quantization *q = &d->quantization;
    if (c->broken || d->layout_tag == COMPOSITE) return;
    if (d->layout_tag == BLOCK_PAGED) judge_pages(c, t);
    uint64_t bits = element_bits(d), elements = element_count(d);
    if (bits < 8 && elements != DYNAMIC) {
        uint64_t unit = bits == 6 ? 4 : 8 / bits, over = elements % unit, used = (over * bits + 7) / 8;
        const uint8_t *last = t->buffers[0] + d->byte_offset + (elements - over) / unit * (bits == 6 ? 3 : 1);
        bool clean = !over || (!(last[used - 1] >> ((over * bits - 1) % 8 + 1)) && all_zero(last + used, (bits == 6 ? 3 : 1) - used));
        need(c, clean, "the unused bits behind the last packed element are zero");
    }
    if (d->flags & HAS_QUANTIZATION && q->tag == 5 && scale_count(d) != DYNAMIC)
        for (uint64_t i = 0, count = scale_count(d); i < count && !c->broken; i++) {
            uint8_t scale = t->buffers[q->scale_buffer][i];
            need(c, scale != 0x00 && scale != 0xFF, "no MXFP scale is 0x00 or 0xFF");
        }
}

static bool same_shape(const uint64_t *a, const uint64_t *b, uint32_t rank) { return !memcmp(a, b, rank * sizeof *a); }

static bool overlapping(const Descriptor *a, const Descriptor *b) {
    for (uint32_t k = 0; k < a->rank; k++)
        if (a->shard_offset[k] >= b->shard_offset[k] + b->shape[k] || b->shard_offset[k] >= a->shard_offset[k] + a->shape[k])
            return false;
    return !has_dimension(a, 0) && !has_dimension(b, 0);
}

static uint64_t volume(const Descriptor *d) {
    uint64_t elements = 1;
    for (uint32_t k = 0; k < d->rank; k++) elements = times(elements, d->shape[k]);
    return has_dimension(d, 0) ? 0 : elements;
}

/* Judges the tensor at `first` with all its members, and gives the position behind them. */
static size_t judge_tree(Cursor *c, Tensor *const *tensors, size_t count, size_t first, int depth) {
    const Descriptor *head = &tensors[first]->descriptor;
    size_t next = first + 1;
    if (c->broken || head->layout_tag != COMPOSITE) return next;
    need(c, depth <= MAX_NESTING, "composites nest at most 8 deep");
    need(c, head->composite.member_count <= count - next, "a composite has all its members");
    uint8_t rule = head->composite.rule;
    need(c, rule != 2 || head->composite.member_count, "an overlay has a base");
    size_t *members = allocate(c->broken ? 0 : head->composite.member_count * sizeof *members);
    uint64_t covered = 0;
    for (uint32_t i = 0; i < head->composite.member_count && !c->broken; i++) {
        if (!need(c, next < count, "a composite has all its members")) break;
        const Descriptor *m = &tensors[members[i] = next]->descriptor;
        bool section = m->flags & HAS_MEMBER, spatial = rule == 1 || rule == 2;
        need(c, rule == 2 || !section, "only overlay members carry a member section");
        bool same_type = m->type_tag == head->type_tag && !memcmp(&m->extension, &head->extension, sizeof m->extension);
        need(c, !spatial || same_type, "a member has the element type of its partition or overlay");
        need(c, !spatial || m->flags & HAS_SHARD, "partition and overlay members are shards");
        bool of_head = m->rank == head->rank && same_shape(m->parent_shape, head->shape, m->rank);
        need(c, !spatial || of_head, "a member's parent is the head");
        if (rule == 2) {
            need(c, section || m->layout_tag == COMPOSITE, "overlay members carry a member section");
            need(c, !section || m->member_role == (i == 0), "the first overlay member alone is the base");
            need(c, i || same_shape(m->shape, head->shape, m->rank), "the base spans the head");
        }
        if (rule == 1 && !c->broken) {
            covered = plus(covered, volume(m));
            for (uint32_t j = 0; j < i; j++)
                need(c, !overlapping(m, &tensors[members[j]]->descriptor), "the members of a partition do not overlap");
        }
        next = judge_tree(c, tensors, count, next, depth + 1);
    }
    need(c, rule != 1 || covered == volume(head), "the members of a partition cover the head");
    free(members);
    return next;
}

static void judge_composites(Cursor *c, Tensor *const *tensors, size_t count) {
    for (size_t at = 0; at < count && !c->broken;) {
        need(c, !(tensors[at]->descriptor.flags & HAS_MEMBER), "only overlay members carry a member section");
        at = judge_tree(c, tensors, count, at, 1);
    }
}

typedef enum { A_FILE, STREAM, DESCRIPTOR } Form;

/* A whole input: a file, a stream (which has tensors alone), or a descriptor (of one tensor without buffers). */
typedef struct {
    Form form;
    uint8_t major, minor;
    uint32_t flags, alignment, kv_length, index_crc;
    uint64_t first_descriptor, hint, index_offset, index_length, kv_offset;
    bool has_kv;
    Tensor **tensors; /* in write order */
    size_t count, room;
} Input;

static Tensor *add_tensor(Input *in) {
    if (in->count == in->room) {
        in->room = in->room * 2 + 8;
        in->tensors = realloc(in->tensors, in->room * sizeof *in->tensors);
        if (!in->tensors) {
            fputs("out of memory\n", stderr);
            exit(1);
        }
    }
    return in->tensors[in->count++] = allocate(sizeof(Tensor));
}

static void discard(Input *in) {
    for (size_t i = 0; i < in->count; i++) {
        free(in->tensors[i]->descriptor.shape);
        free(in->tensors[i]->descriptor.handles);
        free(in->tensors[i]->buffers);
        free(in->tensors[i]);
    }
    free(in->tensors);
}

static void read_stream(Cursor *c, Input *in) {
    while (c->at < c->end && !c->broken) {
        Tensor *t = add_tensor(in);
        read_descriptor(c, &t->descriptor);
        t->buffers = allocate(t->descriptor.buffer_count * sizeof *t->buffers);
        for (int i = 0; i < t->descriptor.buffer_count && !c->broken; i++)
            t->buffers[i] = take(c, t->descriptor.handles[i].byte_size);
        judge_payload(c, t);
    }
    judge_composites(c, in->tensors, in->count);
}

static bool valid_utf8(const uint8_t *s, uint64_t size) {
    for (uint64_t i = 0; i < size;) {
        uint8_t lead = s[i++];
        if (lead < 0x80) continue;
        int more = lead >= 0xF0 ? 3 : lead >= 0xE0 ? 2 : 1;
        if (lead < 0xC2 || lead > 0xF4 || size - i < (uint64_t)more) return false;
        uint8_t low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80, high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
        for (; more--; i++, low = 0x80, high = 0xBF)
            if (s[i] < low || s[i] > high) return false;
    }
    return true;
}

static Slice read_text(Cursor *c, int width) {
    Slice text = {NULL, get(c, width)};
    text.data = take(c, text.size);
    need(c, !text.data || valid_utf8(text.data, text.size), "text is UTF-8");
    if (!text.data) text.size = 0;
    return text;
}

static int by_bytes(const void *a, const void *b) {
    const Slice *x = a, *y = b;
    int order = memcmp(x->data, y->data, x->size < y->size ? x->size : y->size);
    return order ? order : (x->size > y->size) - (x->size < y->size);
}

static void judge_unique(Cursor *c, Slice *names, size_t count, const char *rule) {
    if (c->broken) return;
    if (count) qsort(names, count, sizeof *names, by_bytes);
    for (size_t i = 1; i < count; i++) need(c, by_bytes(&names[i - 1], &names[i]), rule);
}

static void skip_value(Cursor *c, uint8_t tag) {
    if (tag == 1) read_text(c, 4);
    else if (tag == 5) need(c, get(c, 1) <= 1, "a bool is 0 or 1");
    else if (tag == 6) take(c, get(c, 4));
    else get(c, 8);
}

static bool is_key(Slice key, const char *name) {
    return key.size == strlen(name) && !memcmp(key.data, name, key.size);
}

/* Judges the KV section; where the checksum array is, gives its first payload byte and its count. */
static void judge_metadata(Cursor *c, const uint8_t **sums, uint64_t *sum_count) {
    const uint8_t *section = c->data + c->at;
    uint64_t count = get(c, 4), room = (c->end - c->at) / 5 + 1, seen = 0, unsealed = 0;
    bool sealed = false;
    Slice *keys = allocate((count < room ? count : room) * sizeof *keys);
    for (uint64_t i = 0; i < count && !c->broken; i++) {
        unsealed = (uint64_t)(c->data + c->at - section);
        Slice key = read_text(c, 2);
        need(c, key.size, "a key is not empty");
        uint8_t tag = (uint8_t)get(c, 1), element = 0;
        need(c, tag >= 1 && tag <= 7, "value_tag is 1 to 7");
        uint64_t values = 1;
        if (tag == 7) {
            element = (uint8_t)get(c, 1);
            values = get(c, 4);
            need(c, element >= 1 && element <= 6, "an array's element tag is 1 to 6");
        }
        sealed = tag == 3 && is_key(key, "hurray_wire.metadata_crc32c");
        if (is_key(key, "hurray_wire.crc32c") && !c->broken) {
            need(c, tag == 7 && element == 3, "hurray_wire.crc32c is an array of u64");
            *sums = c->data + c->at;
            *sum_count = values;
        }
        for (uint64_t v = 0; v < values && !c->broken; v++) skip_value(c, tag == 7 ? element : tag);
        if (!c->broken) keys[seen++] = key;
    }
    need(c, c->at == c->end, "kv_length is what the entries take");
    if (sealed && !c->broken) /* by the last entry, which is for all that stands before it */
        need(c, load(c->data + c->end - 8, 8) == crc32c(section, unsealed), "the checksum of the metadata is the one recorded");
    judge_unique(c, keys, seen, "metadata keys are unique");
    free(keys);
}

static void read_index(Cursor *c, Input *in) {
    uint64_t count = get(c, 8), previous_offset = 0;
    Slice previous = {0};
    for (uint64_t i = 0; i < count && !c->broken; i++) {
        Tensor *t = add_tensor(in);
        t->position = i;
        t->name = read_text(c, 2);
        need(c, t->name.size, "a tensor's name is not empty");
        t->descriptor_offset = get(c, 8);
        t->descriptor_length = (uint32_t)get(c, 4);
        t->data_offset = get(c, 8);
        t->data_length = get(c, 8);
        need(c, get(c, 4) == 0, "an index entry's flags are 0");
        if (c->broken) break;
        if (in->flags & FLAG_SORTED) need(c, !i || by_bytes(&previous, &t->name) < 0, "the index is sorted by name");
        else need(c, !i || previous_offset < t->descriptor_offset, "the index is in write order");
        previous = t->name;
        previous_offset = t->descriptor_offset;
    }
    need(c, c->at == c->end, "index_length is what the entries take");
    Slice *names = allocate(in->count * sizeof *names);
    for (size_t i = 0; i < in->count; i++) names[i] = in->tensors[i]->name;
    judge_unique(c, names, in->count, "tensor names are unique");
    free(names);
}

static int by_offset(const void *a, const void *b) {
    uint64_t x = (*(Tensor *const *)a)->descriptor_offset, y = (*(Tensor *const *)b)->descriptor_offset;
    return (x > y) - (x < y);
}

/* What takes a part of the file, and how many bytes of padding may follow it. */
typedef struct {
    uint64_t start, end, slack;
} Extent;

typedef struct {
    Extent *list;
    size_t count, room;
} Extents;

static void claim(Extents *extents, uint64_t start, uint64_t size, uint64_t slack) {
    if (extents->count == extents->room) {
        extents->room = extents->room * 2 + 16;
        extents->list = realloc(extents->list, extents->room * sizeof *extents->list);
        if (!extents->list) {
            fputs("out of memory\n", stderr);
            exit(1);
        }
    }
    extents->list[extents->count++] = (Extent){start, start + size, slack};
}

static int by_start(const void *a, const void *b) {
    const Extent *x = a, *y = b;
    return x->start != y->start ? (x->start > y->start) - (x->start < y->start) : (x->end > y->end) - (x->end < y->end);
}

static uint64_t aligned(uint64_t offset, uint64_t alignment) {
    return plus(offset, (alignment - offset % alignment) % alignment);
}

/* Reads the tensor that the index describes, and notes what it takes of the file. */
static void read_tensor(Cursor *file, const Input *in, Tensor *t, uint64_t limit, Extents *extents) {
    const Descriptor *d = &t->descriptor;
    file->at = t->descriptor_offset;
    bool fits = t->descriptor_offset >= 64 && t->descriptor_offset % 8 == 0 && t->descriptor_offset <= limit &&
                t->descriptor_length <= limit - t->descriptor_offset;
    if (!need(file, fits, "a descriptor is before the trailer, at a multiple of 8")) return;
    Cursor c = *file;
    c.end = c.at + t->descriptor_length;
    read_descriptor(&c, &t->descriptor);
    t->buffers = allocate(d->buffer_count * sizeof *t->buffers);
    need(&c, d->length == t->descriptor_length, "the index tells the descriptor's length");
    claim(extents, t->descriptor_offset, t->descriptor_length, in->alignment - 1);
    uint64_t at = t->data_offset;
    if (d->layout_tag == COMPOSITE) {
        need(&c, t->data_length == 0, "a composite head has no data");
    } else if (!c.broken) {
        bool placed = at == aligned(c.end, in->alignment) && at <= limit && t->data_length <= limit - at;
        need(&c, placed, "data is at the next multiple of the alignment, and before the trailer");
        if (t->data_length) claim(extents, at, t->data_length, 7);
        for (int i = 0; i < d->buffer_count && !c.broken; i++) {
            uint64_t start = aligned(at, in->alignment);
            if (!need(&c, start <= limit && d->handles[i].byte_size <= limit - start, "a buffer is before the trailer")) break;
            need(&c, all_zero(file->data + at, start - at), "padding is zero");
            t->buffers[i] = file->data + start;
            at = start + d->handles[i].byte_size;
        }
        need(&c, at - t->data_offset == t->data_length, "data_length spans the buffers");
        judge_payload(&c, t);
    }
    file->broken = c.broken;
    file->where = c.where;
    file->unsupported = c.unsupported;
}

/* Every byte belongs to one thing, or is one of few enough zeros between two things. */
static void judge_extents(Cursor *c, const Extents *extents, uint64_t room_for_descriptor) {
    uint64_t reached = 0, slack = 0;
    qsort(extents->list, extents->count, sizeof *extents->list, by_start);
    for (size_t i = 0; i < extents->count && !c->broken; i++) {
        Extent extent = extents->list[i];
        c->at = extent.start;
        need(c, i == 0 || extent.start >= room_for_descriptor, "first_descriptor_offset is not beyond what comes first");
        if (!need(c, extent.start >= reached, "no two things take the same byte")) break;
        if (!need(c, extent.start - reached <= slack, "no hole is between two things")) break;
        need(c, all_zero(c->data + reached, extent.start - reached), "padding is zero");
        reached = extent.end;
        slack = extent.slack;
    }
}

static void judge_checksums(Cursor *c, const Input *in, const uint8_t *sums, uint64_t count) {
    uint64_t i = 0;
    for (size_t t = 0; t < in->count && !c->broken; t++) {
        const Tensor *tensor = in->tensors[t];
        c->at = tensor->descriptor_offset;
        if (!need(c, count - i > tensor->descriptor.buffer_count, "there is a checksum for everything")) break;
        bool good = load(sums + 8 * i++, 8) == crc32c(c->data + c->at, tensor->descriptor_length);
        for (int b = 0; b < tensor->descriptor.buffer_count; b++)
            good &= load(sums + 8 * i++, 8) == crc32c(tensor->buffers[b], tensor->descriptor.handles[b].byte_size);
        need(c, good, "the checksums are those recorded");
    }
    need(c, i == count, "there is no checksum too many");
}

static void read_file(Cursor *c, Input *in) {
    const uint64_t size = c->end;
    const uint8_t *magic = take(c, 8);
    need(c, magic && !memcmp(magic, "HRRYFILE", 8), "a file starts with HRRYFILE");
    in->major = (uint8_t)get(c, 1);
    in->minor = (uint8_t)get(c, 1);
    need(c, in->major == 1, "the container's major version is 1");
    reserved(c, 2);
    in->flags = (uint32_t)get(c, 4);
    need(c, in->flags < 8, "file_flags has three bits");
    in->alignment = (uint32_t)get(c, 4);
    bool alignment = power_of_two(in->alignment) && in->alignment >= 4096 && in->alignment <= 2097152;
    need(c, alignment, "data_buffer_alignment is a power of two, 4096 to 2097152");
    in->first_descriptor = get(c, 8);
    need(c, in->first_descriptor >= 64 && in->first_descriptor % 8 == 0, "the first descriptor is at a multiple of 8");
    in->hint = get(c, 8);
    reserved(c, 28);
    if (!need(c, size >= 104, "a file has room for its trailer")) return;

    const uint64_t limit = size - 40;
    c->at = limit;
    in->index_offset = get(c, 8);
    in->index_length = get(c, 8);
    in->kv_offset = get(c, 8);
    in->kv_length = (uint32_t)get(c, 4);
    in->index_crc = (uint32_t)get(c, 4);
    reserved(c, 4);
    need(c, !memcmp(c->data + size - 4, "HRRY", 4), "a file ends with HRRY");
    bool index_fits = in->index_offset >= 64 && in->index_offset % 8 == 0 && in->index_offset <= limit &&
                      in->index_length <= limit - in->index_offset;
    if (!need(c, index_fits, "the index is before the trailer, at a multiple of 8")) return;
    uint32_t crc = in->flags & FLAG_CRC ? crc32c(c->data + in->index_offset, in->index_length) : 0;
    need(c, crc == in->index_crc, "index_crc32c is that of the index, or 0 without its flag");

    const uint8_t *sums = NULL;
    uint64_t sum_count = 0;
    in->has_kv = in->kv_offset != 0;
    need(c, !in->kv_offset == !in->kv_length, "kv_offset and kv_length are both 0 or both not");
    need(c, in->has_kv || !(in->flags & FLAG_METADATA), "HAS_KV_METADATA needs a KV section");
    if (in->has_kv && !c->broken) {
        bool fits = in->kv_offset >= 64 && in->kv_offset % 8 == 0 && in->kv_offset <= limit && in->kv_length <= limit - in->kv_offset;
        if (!need(c, fits, "the KV section is before the trailer, at a multiple of 8")) return;
        c->at = in->kv_offset;
        c->end = in->kv_offset + in->kv_length;
        judge_metadata(c, &sums, &sum_count);
    }
    c->at = in->index_offset;
    c->end = in->index_offset + in->index_length;
    if (!c->broken) read_index(c, in);
    if (c->broken) return;

    qsort(in->tensors, in->count, sizeof *in->tensors, by_offset);
    c->at = 20;
    need(c, !in->count || in->tensors[0]->descriptor_offset == in->first_descriptor, "first_descriptor_offset is right");
    Extents extents = {0};
    claim(&extents, 0, 64, in->first_descriptor - 64 + (in->count ? 0 : 7));
    claim(&extents, limit, 40, 0);
    claim(&extents, in->index_offset, in->index_length, 7);
    if (in->has_kv) claim(&extents, in->kv_offset, in->kv_length, 7);
    uint64_t reached = 64;
    for (size_t i = 0; i < in->count && !c->broken; i++) {
        c->at = in->tensors[i]->descriptor_offset;
        need(c, c->at >= reached, "tensors follow one another");
        size_t before = extents.count;
        read_tensor(c, in, in->tensors[i], limit, &extents);
        for (; before < extents.count; before++)
            if (extents.list[before].end > reached) reached = extents.list[before].end;
    }
    judge_composites(c, in->tensors, in->count);
    judge_extents(c, &extents, in->count ? 0 : in->first_descriptor);
    if (sums) judge_checksums(c, in, sums, sum_count);
    free(extents.list);
}

static Cursor read_input(const uint8_t *data, uint64_t size, Form form, Input *in) {
    Cursor c = {.data = data, .end = size};
    *in = (Input){.form = form};
    if (form == STREAM) {
        read_stream(&c, in);
    } else if (form == DESCRIPTOR) {
        read_descriptor(&c, &add_tensor(in)->descriptor);
        need(&c, c.at == c.end, "nothing follows the descriptor");
    } else {
        read_file(&c, in);
    }
    return c;
}

/* ---- JSON --------------------------------------------------------------------------------------------------- */

static void print_u64(uint64_t value) {
    printf(value >> 53 ? "\"%" PRIu64 "\"" : "%" PRIu64, value);
}

static void print_i64(int64_t value) {
    const int64_t bound = INT64_C(1) << 53;
    printf(value > -bound && value < bound ? "%" PRId64 : "\"%" PRId64 "\"", value);
}

static void print_text(Slice text) {
    putchar('"');
    for (uint64_t i = 0; i < text.size; i++) {
        uint8_t byte = text.data[i];
        if (byte < 0x20) printf("\\u%04x", byte);
        else if (byte == '"' || byte == '\\') printf("\\%c", byte);
        else putchar(byte);
    }
    putchar('"');
}

static void print_hex(const uint8_t *data, uint64_t size) {
    putchar('"');
    while (size--) printf("%02x", *data++);
    putchar('"');
}

static void print_u64s(const char *name, const uint64_t *values, uint32_t count) {
    printf("\"%s\":[", name);
    for (uint32_t i = 0; i < count; i++) {
        if (i) putchar(',');
        print_u64(values[i]);
    }
    putchar(']');
}

static void print_field(const char *name, uint64_t value) {
    printf("\"%s\":", name);
    print_u64(value);
    putchar(',');
}

static void print_quantization(const Quantization *q) {
    printf("{\"quantization_length\":%" PRIu32 ",\"scheme_tag\":%d,\"scheme_version\":%d,\"flags\":%d", q->length, q->tag,
           q->version, q->flags);
    if (q->tag == 1) {
        printf(",\"scale\":\"%08" PRIx32 "\",\"zero_point\":%" PRId32, q->scale, q->zero_point);
    } else {
        printf(",\"axis\":%" PRIu32 ",\"scale_buffer_index\":%" PRIu32, q->axis, q->scale_buffer);
        if (q->tag > 2) printf(",\"block_size\":%" PRIu32, q->block_size);
        if (q->tag <= 3) printf(",\"zero_point_buffer_index\":%" PRIu32 ",\"scale_type_tag\":%d", q->zero_buffer, q->scale_type);
    }
    putchar('}');
}

static void print_statistics(const Statistics *s) {
    static const char *const values[] = {"sparsity_ratio", "value_min", "value_max", "value_abs_max", "value_mean", "value_stddev"};
    static const char *const bytes[] = {"nm_n", "nm_m", "has_nan", "has_inf"};
    putchar('{');
    print_field("nnz", s->nnz);
    for (int i = 0; i < 6; i++) printf("\"%s\":\"%016" PRIx64 "\",", values[i], s->values[i]);
    for (int i = 0; i < 4; i++) printf("\"%s\":%d,", bytes[i], s->bytes[i]);
    printf("\"computed_mask\":%" PRIu32 "}", s->mask);
}

static void print_descriptor(const Descriptor *d) {
    printf("{\"version_major\":%d,\"version_minor\":%d,\"descriptor_length\":%" PRIu32 ",\"flags\":%" PRIu32, d->version_major,
           d->version_minor, d->length, d->flags);
    printf(",\"type_tag\":%d,\"layout_tag\":%d,\"rank\":%" PRIu32 ",", d->type_tag, d->layout_tag, d->rank);
    print_u64s("shape", d->shape, d->rank);
    putchar(',');
    print_field("byte_offset", d->byte_offset);
    printf("\"layout\":{");
    if (d->layout_tag == BLOCK_PAGED) {
        const Paged *p = &d->paged;
        print_field("num_pages", p->num_pages);
        printf("\"page_size\":%" PRIu32 ",\"paged_axis\":%" PRIu32 ",\"num_seqs\":%" PRIu32, p->page_size, p->paged_axis, p->num_seqs);
        printf(",\"kv_role\":%d,\"layer_index\":%" PRIu32 ",\"block_table_index_type\":%d", p->kv_role, p->layer_index, p->index_type);
    } else if (d->layout_tag == COMPOSITE) {
        printf("\"composition_rule\":%d,\"combine_op\":%d,\"member_count\":%" PRIu32, d->composite.rule,
               d->composite.combine_op, d->composite.member_count);
    }
    printf("},\"buffer_count\":%d,\"buffer_handles\":[", d->buffer_count);
    for (int i = 0; i < d->buffer_count; i++) {
        const Handle *h = &d->handles[i];
        printf("%s{", i ? "," : "");
        print_field("byte_size", h->byte_size);
        printf("\"alignment\":%" PRIu32 ",\"device_tag\":%d,\"sync_mode\":%d,\"memory_class\":%d}", h->alignment, h->device_tag,
               h->sync_mode, h->memory_class);
    }
    printf("],\"quantization\":");
    if (d->flags & HAS_QUANTIZATION) print_quantization(&d->quantization);
    else printf("null");
    printf(",\"shard\":");
    if (d->flags & HAS_SHARD) {
        putchar('{');
        print_u64s("parent_shape", d->parent_shape, d->rank);
        putchar(',');
        print_u64s("shard_offset", d->shard_offset, d->rank);
        putchar('}');
    } else {
        printf("null");
    }
    printf(",\"statistics\":");
    if (d->flags & HAS_STATISTICS) print_statistics(&d->statistics);
    else printf("null");
    printf(",\"extension_type\":");
    const Extension *e = &d->extension;
    if (d->flags & HAS_EXTENSION)
        printf("{\"bit_width\":%" PRIu32 ",\"packing_factor\":%d,\"is_float\":%d,\"is_signed\":%d,\"sign_bits\":%d,\"exponent_bits\":%d,"
               "\"mantissa_bits\":%d,\"exponent_bias\":%" PRIu32 ",\"has_nan\":%d,\"has_inf\":%d}",
               e->bit_width, e->packing_factor, e->is_float, e->is_signed, e->sign_bits, e->exponent_bits, e->mantissa_bits,
               e->exponent_bias, e->has_nan, e->has_inf);
    else printf("null");
    printf(",\"composite_member\":");
    if (d->flags & HAS_MEMBER) printf("{\"role\":%d}}", d->member_role);
    else printf("null}");
}

static void print_value(Cursor *c, uint8_t tag) {
    switch (tag) {
    case 1: print_text(read_text(c, 4)); break;
    case 2: print_i64((int64_t)get(c, 8)); break;
    case 3: print_u64(get(c, 8)); break;
    case 4: printf("\"%016" PRIx64 "\"", get(c, 8)); break;
    case 5: printf(get(c, 1) ? "true" : "false"); break;
    case 6: {
        uint64_t size = get(c, 4);
        print_hex(take(c, size), size);
    }
    }
}

/* The section was judged before, so reading it again cannot fail. */
static void print_metadata(const uint8_t *data, const Input *in) {
    static const char *const kinds[] = {"", "string", "i64", "u64", "f64", "bool", "bytes", "array"};
    Cursor c = {.data = data, .at = in->kv_offset, .end = in->kv_offset + in->kv_length};
    putchar('[');
    for (uint64_t i = 0, count = get(&c, 4); i < count; i++) {
        printf("%s{\"key\":", i ? "," : "");
        print_text(read_text(&c, 2));
        uint8_t tag = (uint8_t)get(&c, 1);
        printf(",\"kind\":\"%s\",", kinds[tag]);
        if (tag == 7) {
            uint8_t element = (uint8_t)get(&c, 1);
            printf("\"element_kind\":\"%s\",\"value\":[", kinds[element]);
            for (uint64_t v = 0, values = get(&c, 4); v < values; v++) {
                if (v) putchar(',');
                print_value(&c, element);
            }
            putchar(']');
        } else {
            printf("\"value\":");
            print_value(&c, tag);
        }
        putchar('}');
    }
    putchar(']');
}

static void print_container(const uint8_t *data, const Input *in) {
    printf("\"header\":{\"container_major\":%d,\"container_minor\":%d,\"file_flags\":%" PRIu32 ",", in->major, in->minor, in->flags);
    print_field("data_buffer_alignment", in->alignment);
    print_field("first_descriptor_offset", in->first_descriptor);
    printf("\"tensor_count_hint\":");
    print_u64(in->hint);
    printf("},\"kv_metadata\":");
    if (in->has_kv) print_metadata(data, in);
    else printf("null");
    printf(",\"index\":[");
    const Tensor **in_index_order = allocate(in->count * sizeof *in_index_order);
    for (size_t i = 0; i < in->count; i++) in_index_order[in->tensors[i]->position] = in->tensors[i];
    for (size_t i = 0; i < in->count; i++) {
        const Tensor *t = in_index_order[i];
        printf("%s{\"name\":", i ? "," : "");
        print_text(t->name);
        putchar(',');
        print_field("descriptor_offset", t->descriptor_offset);
        print_field("descriptor_length", t->descriptor_length);
        print_field("data_offset", t->data_offset);
        print_field("data_length", t->data_length);
        printf("\"flags\":0}");
    }
    free(in_index_order);
    printf("],\"trailer\":{");
    print_field("index_offset", in->index_offset);
    print_field("index_length", in->index_length);
    print_field("kv_offset", in->kv_offset);
    print_field("kv_length", in->kv_length);
    printf("\"index_crc32c\":\"%08" PRIx32 "\"},", in->index_crc);
}

static void print_input(const uint8_t *data, const Input *in) {
    if (in->form == DESCRIPTOR) {
        printf("{\"form\":\"descriptor\",\"descriptor\":");
        print_descriptor(&in->tensors[0]->descriptor);
        puts("}");
        return;
    }
    printf("{\"form\":\"%s\",", in->form == STREAM ? "stream" : "file");
    if (in->form == A_FILE) print_container(data, in);
    printf("\"tensors\":[");
    for (size_t i = 0; i < in->count; i++) {
        const Tensor *t = in->tensors[i];
        printf("%s{", i ? "," : "");
        if (in->form == A_FILE) {
            printf("\"name\":");
            print_text(t->name);
            putchar(',');
        }
        printf("\"descriptor\":");
        print_descriptor(&t->descriptor);
        printf(",\"buffers\":[");
        for (int b = 0; b < t->descriptor.buffer_count; b++) {
            uint64_t size = t->descriptor.handles[b].byte_size;
            printf("%s{", b ? "," : "");
            print_field("size", size);
            printf("\"crc32c\":\"%08" PRIx32 "\"}", crc32c(t->buffers[b], size));
        }
        printf("]}");
    }
    puts("]}");
}

/* ---- commands ----------------------------------------------------------------------------------------------- */

static bool load_file(const char *path, Bytes *out) {
    FILE *file = fopen(path, "rb");
    if (!file) return false;
    uint8_t block[65536];
    size_t got;
    while ((got = fread(block, 1, sizeof block, file)) > 0) put(out, block, got);
    bool good = !ferror(file);
    if (!out->data) out->data = allocate(1);
    return fclose(file) == 0 && good;
}

static int write_case(const char *name, const char *path) {
    Bytes out = {0};
    if (!encode_case(name, &out)) {
        fprintf(stderr, "there is no case named %s\n", name);
        return 2;
    }
    FILE *file = fopen(path, "wb");
    bool good = file && fwrite(out.data, 1, out.size, file) == out.size;
    if (file) good = fclose(file) == 0 && good;
    free(out.data);
    if (!good) fprintf(stderr, "%s: %s\n", path, strerror(errno));
    return good ? 0 : 1;
}

static int dump(const char *path, Form form) {
    Bytes bytes = {0};
    if (!load_file(path, &bytes)) {
        fprintf(stderr, "%s: %s\n", path, strerror(errno));
        return 1;
    }
    Input in;
    Cursor c = read_input(bytes.data, bytes.size, form, &in);
    int status = !c.broken ? 0 : c.unsupported ? 3 : 1;
    if (status == 0) print_input(bytes.data, &in);
    if (status == 3) puts("\"unsupported\"");
    if (status != 0) fprintf(stderr, "%s: %s (at byte %" PRIu64 ")\n", path, c.broken, c.where);
    discard(&in);
    free(bytes.data);
    return status;
}

static int check(Form form) {
    static char path[65536];
    while (fgets(path, sizeof path, stdin)) {
        path[strcspn(path, "\n")] = '\0';
        Bytes bytes = {0};
        if (!load_file(path, &bytes)) {
            printf("refused: %s\n", strerror(errno));
            continue;
        }
        Input in;
        Cursor c = read_input(bytes.data, bytes.size, form, &in);
        if (!c.broken) puts("ok");
        else if (c.unsupported) puts("unsupported");
        else printf("refused: %s (at byte %" PRIu64 ")\n", c.broken, c.where);
        discard(&in);
        free(bytes.data);
    }
    return 0;
}

static int cuts(const char *path, Form form) {
    Bytes bytes = {0};
    if (!load_file(path, &bytes)) {
        fprintf(stderr, "%s: %s\n", path, strerror(errno));
        return 1;
    }
    const char *separator = "";
    putchar('[');
    for (size_t size = 0; size <= bytes.size; size++) {
        /* A copy of exactly this many bytes, so that a reader that runs over the end can be caught at it. */
        uint8_t *prefix = allocate(size);
        memcpy(prefix, bytes.data, size);
        Input in;
        Cursor c = read_input(prefix, size, form, &in);
        if (!c.broken) {
            printf("%s%zu", separator, size);
            separator = ",";
        }
        discard(&in);
        free(prefix);
    }
    puts("]");
    free(bytes.data);
    return 0;
}

int main(int argc, char **argv) {
    const char *command = argc > 1 ? argv[1] : "";
    const char *option = argc > 2 ? argv[2] : "";
    Form form = !strcmp(option, "--stream") ? STREAM : !strcmp(option, "--descriptor") ? DESCRIPTOR : A_FILE;
    int first = form == A_FILE ? 2 : 3;
    if (!strcmp(command, "write") && argc == 4) return write_case(argv[2], argv[3]);
    if (!strcmp(command, "check") && argc == first) return check(form);
    int (*each)(const char *, Form) = !strcmp(command, "dump") ? dump : !strcmp(command, "cuts") ? cuts : NULL;
    if (!each || argc == first) {
        fputs("usage: hurray write CASE OUT | dump [FORM] FILE... | check [FORM] | cuts [FORM] FILE...\n"
              "FORM is --stream or --descriptor; otherwise inputs are files\n", stderr);
        return 2;
    }
    for (int i = first; i < argc; i++) {
        int status = each(argv[i], form);
        if (status) return status;
    }
    return 0;
}
