import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.math.BigInteger;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import java.util.TreeSet;
import java.util.zip.CRC32C;

/**
 * Writes and reads Hurray files, streams and bare descriptors of block-paged tensors. The Java 17 library only:
 *
 * <pre>javac -d OUT Hurray.java    java -cp OUT Hurray dump FILE</pre>
 *
 * Commands, cases and the JSON shape are described in ../README.md. Every section is a record whose compact
 * constructor holds the rules it can judge alone, so a record that exists is a valid one, whether it was read or is
 * about to be written. A u64 of the wire is a BigInteger: sums and products of sizes are exact.
 */
public final class Hurray {
    private static final int ROW_MAJOR = 0x01;
    private static final int COLUMN_MAJOR = 0x02;
    private static final int BLOCK_PAGED = 0x0A;
    private static final int COMPOSITE = 0x0B;

    private static final int HAS_QUANTIZATION = 1;
    private static final int HAS_SHARD = 1 << 1;
    private static final int HAS_EXTENSION_TYPE = 1 << 2;
    private static final int HAS_STATISTICS = 1 << 3;
    private static final int HAS_COMPOSITE_MEMBER = 1 << 4;

    private static final int HAS_KV_METADATA = 1;
    private static final int SORTED_INDEX = 1 << 1;
    private static final int HAS_INDEX_CRC32C = 1 << 2;

    private static final long U32_MAX = 0xFFFFFFFFL;
    private static final BigInteger U64_MAX = BigInteger.ONE.shiftLeft(64).subtract(BigInteger.ONE);
    private static final BigInteger DYNAMIC = U64_MAX;
    private static final int HEADER_SIZE = 64;
    private static final int TRAILER_SIZE = 40;
    private static final String CHECKSUMS_KEY = "hurray_wire.crc32c";
    private static final String SEAL_KEY = "hurray_wire.metadata_crc32c";

    private Hurray() {}

    // ---- refusals ---------------------------------------------------------------------------------------------------

    /** The bytes break a rule, which the message says in words. */
    private static class Refusal extends RuntimeException {
        private static final long serialVersionUID = 1;

        Refusal(String rule) {
            super(rule, null, false, false);
        }
    }

    /** The bytes may be fine, but this program knows no such layout. */
    private static final class Unsupported extends Refusal {
        private static final long serialVersionUID = 1;

        Unsupported(int layoutTag) {
            super("layout " + layoutTag + " is not supported here");
        }
    }

    private static void must(boolean good, String rule) {
        if (!good) {
            throw new Refusal(rule);
        }
    }

    private static boolean isPrivate(int tag) {
        return tag >= 0xF0 && tag <= 0xFE;
    }

    private static boolean isPowerOfTwo(long value) {
        return Long.bitCount(value) == 1;
    }

    private static BigInteger big(long value) {
        return BigInteger.valueOf(value);
    }

    private static BigInteger product(List<BigInteger> numbers) {
        return numbers.stream().reduce(BigInteger.ONE, BigInteger::multiply);
    }

    private static BigInteger ceilDivide(BigInteger a, BigInteger b) {
        return a.add(b).subtract(BigInteger.ONE).divide(b);
    }

    private static boolean atLeast(BigInteger a, BigInteger b) {
        return a.compareTo(b) >= 0;
    }

    // ---- element types ----------------------------------------------------------------------------------------------

    /** Bits of an element, or 0 if the tag is no element type of the format. */
    private static int typeBits(int tag) {
        return switch (tag) {
            case 0x20 -> 1;
            case 0x4A, 0x4B -> 2;
            case 0x43, 0x48, 0x49 -> 4;
            case 0x44, 0x45 -> 6;
            case 0x10, 0x11, 0x40, 0x41, 0x42 -> 8;
            case 0x01, 0x02, 0x12, 0x13 -> 16;
            case 0x03, 0x14, 0x15 -> 32;
            case 0x04, 0x16, 0x17, 0x50 -> 64;
            case 0x46, 0x51 -> 128;
            default -> 0;
        };
    }

    private static boolean isNarrowInteger(int tag) {
        return tag == 0x10 || tag == 0x11 || (tag >= 0x48 && tag <= 0x4B);
    }

    private static boolean isQuantizableInteger(int tag) {
        return isNarrowInteger(tag) || (tag >= 0x12 && tag <= 0x15);
    }

    private static BigInteger byteLength(BigInteger count, long bits) {
        return bits == 6 ? ceilDivide(count, big(4)).multiply(big(3)) : ceilDivide(count.multiply(big(bits)), big(8));
    }

    // ---- fields in ----------------------------------------------------------------------------------------------------

    /** Little-endian fields of a part of the input. Views share the array and never copy it. */
    private static final class Fields {
        private final ByteBuffer bytes;

        Fields(ByteBuffer bytes) {
            this.bytes = bytes.order(ByteOrder.LITTLE_ENDIAN);
        }

        int position() {
            return bytes.position();
        }

        int remaining() {
            return bytes.remaining();
        }

        private ByteBuffer need(long size) {
            must(size <= bytes.remaining(), "the bytes end inside a field");
            return bytes;
        }

        int u8() {
            return Byte.toUnsignedInt(need(1).get());
        }

        int u16() {
            return Short.toUnsignedInt(need(2).getShort());
        }

        int i32() {
            return need(4).getInt();
        }

        long u32() {
            return Integer.toUnsignedLong(i32());
        }

        long i64() {
            return need(8).getLong();
        }

        BigInteger u64() {
            return new BigInteger(Long.toUnsignedString(i64()));
        }

        List<BigInteger> u64s(int count) {
            List<BigInteger> numbers = new ArrayList<>();
            while (numbers.size() < count) {
                numbers.add(u64());
            }
            return List.copyOf(numbers);
        }

        /** A view of the next bytes, which keeps its positions in the whole input. */
        Fields view(long size) {
            int start = need(size).position();
            bytes.position(start + (int) size);
            return new Fields(bytes.duplicate().position(start).limit(start + (int) size));
        }

        byte[] copy(long size) {
            must(size <= bytes.remaining(), "the bytes end inside a field");
            byte[] copy = new byte[(int) size];
            bytes.get(copy);
            return copy;
        }

        boolean allZero() {
            while (bytes.hasRemaining()) {
                if (bytes.get() != 0) {
                    return false;
                }
            }
            return true;
        }

        void reserved(int size) {
            must(view(size).allZero(), "reserved bytes are zero");
        }

        void magic(String text) {
            must(Arrays.equals(copy(text.length()), text.getBytes(StandardCharsets.US_ASCII)), text + " stands here");
        }

        String text(long size) {
            try {
                return StandardCharsets.UTF_8.newDecoder().decode(view(size).bytes).toString();
            } catch (CharacterCodingException error) {
                throw new Refusal("text is UTF-8");
            }
        }

        String name() {
            int size = u16();
            must(size > 0, "a name or key is not empty");
            return text(size);
        }

        long crc32c() {
            CRC32C crc = new CRC32C();
            crc.update(bytes.duplicate());
            return crc.getValue();
        }
    }

    // ---- fields out ---------------------------------------------------------------------------------------------------

    private static final class Out {
        private final ByteArrayOutputStream bytes = new ByteArrayOutputStream();

        Out number(int width, long value) {
            for (int i = 0; i < width; i++) {
                bytes.write((int) (value >>> 8 * i));
            }
            return this;
        }

        Out u8(int value) {
            return number(1, value);
        }

        Out u32(long value) {
            return number(4, value);
        }

        Out u64(long value) {
            return number(8, value);
        }

        Out u64(BigInteger value) {
            return number(8, value.longValue());
        }

        Out raw(byte[] raw) {
            bytes.writeBytes(raw);
            return this;
        }

        Out ascii(String text) {
            return raw(text.getBytes(StandardCharsets.US_ASCII));
        }

        Out name(String text) {
            byte[] raw = text.getBytes(StandardCharsets.UTF_8);
            return number(2, raw.length).raw(raw);
        }

        Out zeros(int count) {
            return raw(new byte[count]);
        }

        Out pad(int alignment) {
            return zeros((alignment - size() % alignment) % alignment);
        }

        int size() {
            return bytes.size();
        }

        byte[] toBytes() {
            return bytes.toByteArray();
        }
    }

    private static byte[] packed(int width, long... numbers) {
        Out out = new Out();
        for (long number : numbers) {
            out.number(width, number);
        }
        return out.toBytes();
    }

    // ---- JSON ---------------------------------------------------------------------------------------------------------

    private static Map<String, Object> object(Object... namesAndValues) {
        Map<String, Object> fields = new LinkedHashMap<>();
        for (int i = 0; i < namesAndValues.length; i += 2) {
            fields.put((String) namesAndValues[i], namesAndValues[i + 1]);
        }
        return fields;
    }

    private static String bits32(long value) {
        return String.format("%08x", value);
    }

    private static String bits64(long value) {
        return String.format("%016x", value);
    }

    private static String hex(byte[] raw) {
        return raw.length == 0 ? "" : String.format("%0" + 2 * raw.length + "x", new BigInteger(1, raw));
    }

    private static void writeJson(StringBuilder out, Object value) {
        if (value instanceof Map<?, ?> fields) {
            String separator = "{";
            for (Map.Entry<?, ?> field : fields.entrySet()) {
                out.append(separator);
                writeJson(out, field.getKey());
                out.append(':');
                writeJson(out, field.getValue());
                separator = ",";
            }
            out.append(fields.isEmpty() ? "{}" : "}");
        } else if (value instanceof List<?> items) {
            String separator = "[";
            for (Object item : items) {
                out.append(separator);
                writeJson(out, item);
                separator = ",";
            }
            out.append(items.isEmpty() ? "[]" : "]");
        } else if (value instanceof String text) {
            out.append('"');
            for (char letter : text.toCharArray()) {
                if (letter == '"' || letter == '\\') {
                    out.append('\\').append(letter);
                } else if (letter < 0x20) {
                    out.append(String.format("\\u%04x", (int) letter));
                } else {
                    out.append(letter);
                }
            }
            out.append('"');
        } else if (value instanceof Number number && new BigInteger(number.toString()).abs().bitLength() > 53) {
            out.append('"').append(number).append('"');
        } else {
            out.append(value);
        }
    }

    // ---- the parts of a descriptor ------------------------------------------------------------------------------------

    private record Handle(BigInteger byteSize, long alignment, int deviceTag, int syncMode, int memoryClass) {
        Handle {
            must(isPowerOfTwo(alignment), "a buffer's alignment is a power of two");
            must(alignment >= 64 || byteSize.signum() == 0, "a buffer that is not empty is aligned to 64 or more");
            must(deviceTag <= 8 || isPrivate(deviceTag), "device_tag is known");
            must(syncMode <= (deviceTag == 0 ? 0 : 2), "sync_mode is known, and 0 on the CPU");
            boolean possible = switch (memoryClass) {
                case 0 -> true;
                case 1, 2 -> deviceTag != 5;
                case 3 -> deviceTag == 1 || deviceTag == 2 || deviceTag == 4 || deviceTag == 7;
                default -> isPrivate(memoryClass) && isPrivate(deviceTag);
            };
            must(possible, "memory_class is known, and the device has it");
        }

        static Handle read(Fields in) {
            Handle handle = new Handle(in.u64(), in.u32(), in.u8(), in.u8(), in.u8());
            in.reserved(1);
            return handle;
        }

        static Handle onCpu(int size) {
            return new Handle(big(size), 64, 0, 0, 0);
        }

        void write(Out out) {
            out.u64(byteSize).u32(alignment).u8(deviceTag).u8(syncMode).u8(memoryClass).u8(0);
        }

        Map<String, Object> toJson() {
            return object("byte_size", byteSize, "alignment", alignment, "device_tag", deviceTag, "sync_mode", syncMode,
                    "memory_class", memoryClass);
        }
    }

    private sealed interface Layout permits Dense, BlockPaged, Composite {
        int tag();

        int bufferCount();

        void write(Out out);

        Map<String, Object> toJson();

        static Layout read(int tag, int rank, BigInteger byteOffset, long flags, Fields in) {
            switch (tag) {
                case ROW_MAJOR, COLUMN_MAJOR:
                    return new Dense(tag);
                case BLOCK_PAGED:
                    must(rank == 3, "a block-paged tensor has rank 3");
                    must((flags & HAS_SHARD) == 0, "a block-paged tensor has no shard section");
                    must(byteOffset.signum() == 0, "byte_offset of a block-paged tensor is 0");
                    return BlockPaged.read(in);
                case COMPOSITE:
                    must((flags & (HAS_QUANTIZATION | HAS_COMPOSITE_MEMBER)) == 0,
                            "a composite head has no quantization or member section");
                    must(byteOffset.signum() == 0, "byte_offset of a composite head is 0");
                    return Composite.read(in);
                default:
                    if ((tag >= 0x03 && tag <= 0x09) || tag == 0x40 || isPrivate(tag)) {
                        throw new Unsupported(tag);
                    }
                    throw new Refusal("layout_tag is known");
            }
        }
    }

    /** Row-major or column-major. */
    private record Dense(int tag) implements Layout {
        @Override
        public int bufferCount() {
            return 1;
        }

        @Override
        public void write(Out out) {}

        @Override
        public Map<String, Object> toJson() {
            return object();
        }
    }

    private record BlockPaged(long pageSize, BigInteger numPages, long pagedAxis, long numSeqs, int kvRole,
            long layerIndex, int indexType) implements Layout {
        BlockPaged {
            must(pageSize >= 1, "page_size is at least 1");
            must(pagedAxis == 0, "paged_axis is 0");
            must(kvRole <= 2, "kv_role is key, value or fused");
            must(indexType <= 1, "block_table_index_type is 0 or 1");
        }

        static BlockPaged read(Fields in) {
            var layout = new BlockPaged(in.u32(), in.u64(), in.u32(), in.u32(), in.u8(), in.u32(), in.u8());
            in.reserved(6);
            return layout;
        }

        @Override
        public int tag() {
            return BLOCK_PAGED;
        }

        @Override
        public int bufferCount() {
            return 3;
        }

        int indexWidth() {
            return indexType == 0 ? 4 : 8;
        }

        BigInteger slots() {
            return numPages.multiply(big(pageSize));
        }

        private BigInteger index(Fields in) {
            return indexType == 0 ? big(in.u32()) : in.u64();
        }

        void checkIndices(Fields blockTable, Fields seqPtr) {
            BigInteger previous = BigInteger.ZERO;
            BigInteger pages = big(blockTable.remaining() / indexWidth());
            for (long s = 0; s <= numSeqs; s++) {
                BigInteger pointer = index(seqPtr);
                must(s > 0 || pointer.signum() == 0, "seq_ptr starts with 0");
                must(atLeast(pointer, previous), "seq_ptr never decreases");
                previous = pointer;
            }
            must(previous.equals(pages), "seq_ptr ends with the length of block_table");
            while (blockTable.remaining() > 0) {
                must(index(blockTable).compareTo(numPages) < 0, "every page id is below num_pages");
            }
        }

        @Override
        public void write(Out out) {
            out.u32(pageSize).u64(numPages).u32(pagedAxis).u32(numSeqs).u8(kvRole).u32(layerIndex).u8(indexType).zeros(6);
        }

        @Override
        public Map<String, Object> toJson() {
            return object("page_size", pageSize, "num_pages", numPages, "paged_axis", pagedAxis, "num_seqs", numSeqs,
                    "kv_role", kvRole, "layer_index", layerIndex, "block_table_index_type", indexType);
        }
    }

    private record Composite(int rule, int combineOp, long memberCount) implements Layout {
        static final int PARTITION = 1;
        static final int OVERLAY = 2;
        static final int GROUP = 3;

        Composite {
            must((rule >= PARTITION && rule <= GROUP) || isPrivate(rule), "composition_rule is known");
            must(rule == OVERLAY ? combineOp == 1 || combineOp == 2 : combineOp == 0, "combine_op fits the rule");
            must(memberCount != U32_MAX, "member_count is definite");
        }

        static Composite read(Fields in) {
            int rule = in.u8();
            int combineOp = in.u8();
            in.reserved(2);
            return new Composite(rule, combineOp, in.u32());
        }

        @Override
        public int tag() {
            return COMPOSITE;
        }

        @Override
        public int bufferCount() {
            return 0;
        }

        @Override
        public void write(Out out) {
            out.u8(rule).u8(combineOp).zeros(2).u32(memberCount);
        }

        @Override
        public Map<String, Object> toJson() {
            return object("composition_rule", rule, "combine_op", combineOp, "member_count", memberCount);
        }
    }

    private record Header(int tag, int version, int flags) {}

    private sealed interface Scheme permits PerTensor, Parametrized {
        void addTo(Map<String, Object> json);
    }

    private record PerTensor(int scale, int zeroPoint) implements Scheme {
        @Override
        public void addTo(Map<String, Object> json) {
            json.put("scale", bits32(Integer.toUnsignedLong(scale)));
            json.put("zero_point", zeroPoint);
        }
    }

    /** Schemes 2 to 5, whose parameters lie in buffers. Null stands for a field that the scheme does not have. */
    private record Parametrized(long axis, Long blockSize, long scaleBuffer, Long zeroPointBuffer, Integer scaleType)
            implements Scheme {
        boolean hasZeroPoints() {
            return zeroPointBuffer != null && zeroPointBuffer != U32_MAX;
        }

        Set<Long> buffers() {
            Set<Long> buffers = new TreeSet<>(List.of(scaleBuffer));
            if (hasZeroPoints()) {
                buffers.add(zeroPointBuffer);
            }
            return buffers;
        }

        int scaleBits(int schemeTag) {
            return schemeTag == 5 ? 8 : scaleType == null ? 32 : typeBits(scaleType);
        }

        @Override
        public void addTo(Map<String, Object> json) {
            json.put("axis", axis);
            if (blockSize != null) {
                json.put("block_size", blockSize);
            }
            json.put("scale_buffer_index", scaleBuffer);
            if (scaleType != null) {
                json.put("zero_point_buffer_index", zeroPointBuffer);
                json.put("scale_type_tag", scaleType);
            }
        }
    }

    private record Quantization(long length, Header header, Scheme scheme) {
        static Quantization read(Fields outer, int typeTag, List<BigInteger> shape, Layout layout) {
            long length = outer.u32();
            Fields in = outer.view(length);
            var header = new Header(in.u8(), in.u8(), in.u16());
            int tag = header.tag;
            must(tag >= 1 && tag <= 5, "scheme_tag is 1 to 5");
            must(header.version == 1, "scheme_version is 1");
            must(header.flags == 0 || (header.flags == 1 && (tag == 2 || tag == 3)), "only 2 and 3 may be SYMMETRIC");
            Scheme scheme = tag == 1 ? readPerTensor(in, typeTag) : readParametrized(in, header);
            if (scheme instanceof Parametrized parametrized) {
                check(tag, parametrized, typeTag, shape, layout);
            }
            must(in.allZero(), "padding is zero");
            return new Quantization(length, header, scheme);
        }

        private static PerTensor readPerTensor(Fields in, int typeTag) {
            var scheme = new PerTensor(in.i32(), in.i32());
            in.reserved(4);
            float scale = Float.intBitsToFloat(scheme.scale);
            must(Float.isFinite(scale) && scale != 0, "scale is finite and not 0");
            must(isQuantizableInteger(typeTag), "per-tensor affine has integer storage of up to 32 bits");
            long span = 1L << typeBits(typeTag);
            long low = typeTag % 2 == 0 ? -span / 2 : 0;
            must(scheme.zeroPoint >= low && scheme.zeroPoint < low + span, "zero_point is in the storage type's range");
            return scheme;
        }

        private static Parametrized readParametrized(Fields in, Header header) {
            long axis = in.u32();
            Long blockSize = header.tag > 2 ? in.u32() : null;
            long scaleBuffer = in.u32();
            if (header.tag > 3) {
                return new Parametrized(axis, blockSize, scaleBuffer, null, null);
            }
            var scheme = new Parametrized(axis, blockSize, scaleBuffer, in.u32(), in.u8());
            in.reserved(3);
            must(scheme.hasZeroPoints() == (header.flags == 0), "exactly a symmetric scheme has no zero points");
            return scheme;
        }

        private static void check(int tag, Parametrized scheme, int typeTag, List<BigInteger> shape, Layout layout) {
            must(scheme.axis < shape.size(), "the quantization axis is below rank");
            long block = scheme.blockSize == null ? 0 : scheme.blockSize;
            must(tag == 2 || isPowerOfTwo(block), "block_size is a power of two");
            boolean mxfp = typeTag == 0x10 || typeTag == 0x40 || typeTag == 0x41 || (typeTag >= 0x43 && typeTag <= 0x45)
                    || typeTag == 0x48;
            boolean fits = switch (tag) {
                case 2 -> isQuantizableInteger(typeTag) && scheme.scaleType == 0x03;
                case 3 -> isNarrowInteger(typeTag) && block >= 2 && scheme.scaleType >= 1 && scheme.scaleType <= 3;
                case 4 -> typeTag == 0x49 && block >= 8;
                default -> mxfp && block >= 16 && block <= 2048;
            };
            must(fits, "storage type, scale type and block_size fit the scheme");
            BigInteger size = shape.get((int) scheme.axis);
            if (tag == 5 && !size.equals(DYNAMIC)) {
                must(size.signum() > 0 && size.mod(big(block)).signum() == 0, "shape[axis] is a multiple of block_size");
            }
            if (layout instanceof BlockPaged paged) {
                boolean perChannel = tag == 2 && (scheme.axis == 1 || scheme.axis == 2);
                boolean perPageSlot = tag == 3 && scheme.axis == 0 && block == paged.pageSize;
                must(perChannel || perPageSlot, "the scheme composes with pages");
            }
        }

        void write(Out out) {
            var blocks = (Parametrized) scheme; // the one kind that a case has
            out.u32(24).u8(header.tag).u8(header.version).number(2, header.flags).u32(blocks.axis);
            out.u32(blocks.blockSize).u32(blocks.scaleBuffer).u32(blocks.zeroPointBuffer).u8(blocks.scaleType).zeros(3);
        }

        Map<String, Object> toJson() {
            Map<String, Object> json = object("quantization_length", length, "scheme_tag", header.tag, "scheme_version",
                    header.version, "flags", header.flags);
            scheme.addTo(json);
            return json;
        }
    }

    private record Shard(List<BigInteger> parentShape, List<BigInteger> offset) {
        static Shard read(Fields in, List<BigInteger> shape) {
            var shard = new Shard(in.u64s(shape.size()), in.u64s(shape.size()));
            for (int k = 0; k < shape.size(); k++) {
                BigInteger parent = shard.parentShape.get(k);
                must(!parent.equals(DYNAMIC) && !shape.get(k).equals(DYNAMIC), "a shard has no dynamic dimension");
                must(atLeast(parent, shard.offset.get(k).add(shape.get(k))), "a shard lies inside its parent");
            }
            return shard;
        }

        Map<String, Object> toJson() {
            return object("parent_shape", parentShape, "shard_offset", offset);
        }
    }

    /** Statistics and extension type are only looked at and handed on, so each is kept as the object it prints as. */
    private static Map<String, Object> readStatistics(Fields in) {
        long mask = in.u32();
        must(mask < 64, "computed_mask has six bits");
        in.reserved(4);
        Map<String, Object> json = object("computed_mask", mask, "nnz", in.u64());
        for (String name : List.of("sparsity_ratio", "value_min", "value_max", "value_abs_max", "value_mean",
                "value_stddev")) {
            json.put(name, bits64(in.i64()));
        }
        for (String name : List.of("nm_n", "nm_m")) {
            json.put(name, in.u8());
        }
        for (String name : List.of("has_nan", "has_inf")) {
            int value = in.u8();
            must(value <= 1 || (mask & 32) == 0, name + " is 0 or 1 where it is computed");
            json.put(name, value);
        }
        in.reserved(4);
        return json;
    }

    private record ExtensionType(long bitWidth, Map<String, Object> toJson) {
        static ExtensionType read(Fields in) {
            long width = in.u32();
            int factor = in.u8();
            int isFloat = in.u8();
            int isSigned = in.u8();
            must(isFloat <= 1 && isSigned <= 1, "is_float and is_signed are 0 or 1");
            Map<String, Object> json = object("bit_width", width, "packing_factor", factor, "is_float", isFloat,
                    "is_signed", isSigned);
            long floatFields = 0;
            for (String name : List.of("sign_bits", "exponent_bits", "mantissa_bits")) {
                int value = in.u8();
                json.put(name, value);
                floatFields |= value;
            }
            in.reserved(2);
            long bias = in.u32();
            json.put("exponent_bias", bias);
            for (String name : List.of("has_nan", "has_inf")) {
                int value = in.u8();
                must(value <= 1, name + " is 0 or 1");
                json.put(name, value);
                floatFields |= value;
            }
            in.reserved(2);
            must(width >= 8 || width == 1 || width == 2 || width == 4, "bit_width is 1, 2, 4 or at least 8");
            must(factor == (width >= 8 ? 1 : 8 / width), "packing_factor follows from bit_width");
            must(isFloat != 0 || (floatFields | bias) == 0, "an integer type has no float fields");
            return new ExtensionType(width, json);
        }
    }

    // ---- the descriptor -----------------------------------------------------------------------------------------------

    private record Descriptor(int versionMajor, int versionMinor, int length, long flags, int typeTag,
            List<BigInteger> shape, BigInteger byteOffset, Layout layout, List<Handle> handles,
            Quantization quantization, Shard shard, Map<String, Object> statistics, ExtensionType extensionType,
            Integer memberRole) {
        Descriptor {
            must(handles.isEmpty() == layout instanceof Composite, "exactly a composite head has no buffers");
            for (Handle handle : handles) {
                boolean together = handle.deviceTag == handles.get(0).deviceTag
                        && handle.memoryClass == handles.get(0).memoryClass;
                must(together, "all buffers are in one memory of one device");
            }
            must(handles.isEmpty() || atLeast(handles.get(0).byteSize, byteOffset), "byte_offset is inside buffer 0");
        }

        static Descriptor read(Fields outer) {
            int start = outer.position();
            outer.magic("HRRY");
            int major = outer.u8();
            int minor = outer.u8();
            must(major == 1, "version_major is 1");
            long length = outer.u32();
            must(length >= 20, "descriptor_length is at least 20");
            Fields in = outer.view(length - (outer.position() - start));

            long flags = in.u32();
            int typeTag = in.u8();
            int layoutTag = in.u8();
            long rank = in.u32();
            must(flags < 32, "flags has five bits");
            must(typeBits(typeTag) > 0 || isPrivate(typeTag), "type_tag is known");
            boolean extended = (flags & HAS_EXTENSION_TYPE) != 0;
            must(extended == isPrivate(typeTag), "exactly a private type has the extension section");
            must(rank <= 64, "rank is at most 64");
            List<BigInteger> shape = in.u64s((int) rank);
            BigInteger byteOffset = in.u64();
            Layout layout = Layout.read(layoutTag, shape.size(), byteOffset, flags, in);
            List<Handle> handles = new ArrayList<>();
            for (int left = in.u8(); left > 0; left--) {
                handles.add(Handle.read(in));
            }
            Quantization quantization = (flags & HAS_QUANTIZATION) == 0 ? null
                    : Quantization.read(in, typeTag, shape, layout);
            Shard shard = (flags & HAS_SHARD) == 0 ? null : Shard.read(in, shape);
            Map<String, Object> statistics = (flags & HAS_STATISTICS) == 0 ? null : readStatistics(in);
            ExtensionType extensionType = extended ? ExtensionType.read(in) : null;
            Integer role = null;
            if ((flags & HAS_COMPOSITE_MEMBER) != 0) {
                role = in.u8();
                must(role <= 1, "a member is a correction or a base");
                in.reserved(15);
            }
            must(minor > 0 || in.remaining() == 0, "descriptor_length is what the sections take");
            var descriptor = new Descriptor(major, minor, (int) length, flags, typeTag, shape, byteOffset, layout,
                    List.copyOf(handles), quantization, shard, statistics, extensionType, role);
            descriptor.checkBufferCount();
            descriptor.checkBufferSizes();
            return descriptor;
        }

        private long elementBits() {
            if (extensionType == null) {
                return typeBits(typeTag);
            }
            long width = extensionType.bitWidth;
            return width < 8 ? width : (width + 7) / 8 * 8;
        }

        private Parametrized parametrized() {
            return quantization != null && quantization.scheme instanceof Parametrized scheme ? scheme : null;
        }

        private void checkBufferCount() {
            int own = layout.bufferCount();
            if (parametrized() != null) {
                for (long index : parametrized().buffers()) {
                    must(index < handles.size(), "a parameter buffer's index is below buffer_count");
                    must(index >= own, "a parameter buffer is not a layout buffer");
                }
            }
            boolean fits = handles.size() == own || (parametrized() != null && handles.size() > own);
            must(fits, "buffer_count fits the layout and its scales");
        }

        private void checkSize(long buffer, BigInteger need, String rule) {
            must(atLeast(handles.get((int) buffer).byteSize, need), rule);
        }

        private void checkBufferSizes() {
            if (elementCount() != null) {
                BigInteger need = byteOffset.add(byteLength(elementCount(), elementBits()));
                checkSize(0, need, "buffer 0 holds every element");
            }
            if (layout instanceof BlockPaged paged) {
                BigInteger width = big(paged.indexWidth());
                must(handles.get(1).byteSize.mod(width).signum() == 0, "block_table holds whole page ids");
                checkSize(2, big(paged.numSeqs + 1).multiply(width), "seq_ptr holds num_seqs + 1 offsets");
            }
            Parametrized scheme = parametrized();
            BigInteger count = scheme == null ? null : parameterCount(scheme);
            if (count == null) {
                return;
            }
            BigInteger scales = byteLength(count, scheme.scaleBits(quantization.header.tag));
            BigInteger zeroPoints = byteLength(count, 32);
            boolean shared = scheme.hasZeroPoints() && scheme.zeroPointBuffer == scheme.scaleBuffer;
            checkSize(scheme.scaleBuffer, shared ? scales.add(zeroPoints) : scales, "every scale is there");
            if (scheme.hasZeroPoints() && !shared) {
                checkSize(scheme.zeroPointBuffer, zeroPoints, "every zero point is there");
            }
        }

        /** How many elements buffer 0 holds, or null where a dynamic dimension hides it. */
        private BigInteger elementCount() {
            if (layout instanceof BlockPaged paged) {
                List<BigInteger> row = shape.subList(1, 3);
                return row.contains(DYNAMIC) ? null : paged.slots().multiply(product(row));
            }
            return layout instanceof Composite || shape.contains(DYNAMIC) ? null : product(shape);
        }

        /** Judges the bytes that the buffers hold. */
        void checkPayload(List<ByteBuffer> buffers) {
            if (layout instanceof BlockPaged paged) {
                paged.checkIndices(new Fields(buffers.get(1).duplicate()), new Fields(buffers.get(2).duplicate()));
            }
            int bits = (int) Math.min(elementBits(), 8);
            if (bits < 8 && elementCount() != null) {
                int perGroup = bits == 6 ? 4 : 8 / bits;
                int groupBytes = bits == 6 ? 3 : 1;
                BigInteger[] groups = elementCount().divideAndRemainder(big(perGroup));
                int used = groups[1].intValue() * bits;
                int start = buffers.get(0).position() + byteOffset.intValue() + groups[0].intValue() * groupBytes;
                for (int i = 0; i < groupBytes && used > 0; i++) {
                    int mask = 0xFF << Math.min(8, Math.max(0, used - 8 * i));
                    boolean zero = (buffers.get(0).get(start + i) & mask & 0xFF) == 0;
                    must(zero, "the unused bits behind the last packed element are zero");
                }
            }
            if (parametrized() != null && quantization.header.tag == 5 && parameterCount(parametrized()) != null) {
                ByteBuffer scales = buffers.get((int) parametrized().scaleBuffer).duplicate();
                for (int left = parameterCount(parametrized()).intValue(); left > 0; left--) {
                    byte scale = scales.get();
                    must(scale != 0x00 && scale != (byte) 0xFF, "no MXFP scale is 0x00 or 0xFF");
                }
            }
        }

        /** How many scales there are, or null where a dynamic dimension hides it. */
        private BigInteger parameterCount(Parametrized scheme) {
            BigInteger size = shape.get((int) scheme.axis);
            int tag = quantization.header.tag;
            if (layout instanceof BlockPaged paged && tag == 3) {
                return paged.slots();
            }
            if (tag == 2) {
                return size.equals(DYNAMIC) ? null : size;
            }
            if (shape.contains(DYNAMIC)) {
                return null;
            }
            List<BigInteger> blocks = new ArrayList<>(shape);
            blocks.set((int) scheme.axis, ceilDivide(size, big(scheme.blockSize)));
            return product(blocks);
        }

        byte[] toBytes() {
            Out body = new Out().u32(flags).u8(typeTag).u8(layout.tag()).u32(shape.size());
            shape.forEach(body::u64);
            body.u64(byteOffset);
            layout.write(body);
            body.u8(handles.size());
            handles.forEach(handle -> handle.write(body));
            if (quantization != null) {
                quantization.write(body);
            }
            Out out = new Out().ascii("HRRY").u8(versionMajor).u8(versionMinor).u32(body.size() + 10L);
            return out.raw(body.toBytes()).toBytes();
        }

        Map<String, Object> toJson() {
            return object("version_major", versionMajor, "version_minor", versionMinor, "descriptor_length", length,
                    "flags", flags, "type_tag", typeTag, "layout_tag", layout.tag(), "rank", shape.size(), "shape", shape,
                    "byte_offset", byteOffset, "layout", layout.toJson(), "buffer_count", handles.size(),
                    "buffer_handles", handles.stream().map(Handle::toJson).toList(),
                    "quantization", quantization == null ? null : quantization.toJson(),
                    "shard", shard == null ? null : shard.toJson(), "statistics", statistics,
                    "extension_type", extensionType == null ? null : extensionType.toJson,
                    "composite_member", memberRole == null ? null : object("role", memberRole));
        }
    }

    // ---- tensors ------------------------------------------------------------------------------------------------------

    /** A tensor that was read. The name is null in a stream; offset and end are what it takes of the input. */
    private record Tensor(String name, Descriptor descriptor, List<ByteBuffer> buffers, int offset, int end) {
        Tensor {
            descriptor.checkPayload(buffers);
        }

        Map<String, Object> toJson() {
            List<Object> sums = new ArrayList<>();
            for (ByteBuffer buffer : buffers) {
                long crc = new Fields(buffer.duplicate()).crc32c();
                sums.add(object("size", buffer.remaining(), "crc32c", bits32(crc)));
            }
            Map<String, Object> json = object("descriptor", descriptor.toJson(), "buffers", sums);
            if (name != null) {
                json.put("name", name);
            }
            return json;
        }
    }

    /** Binds members to composite heads, in write order. */
    private static final class Binder {
        private final List<Tensor> tensors;
        private int next;

        Binder(List<Tensor> tensors) {
            this.tensors = tensors;
        }

        void bindAll() {
            while (next < tensors.size()) {
                must(tensors.get(next).descriptor.memberRole == null, "only overlay members carry a member section");
                bind(1);
            }
        }

        private void bind(int depth) {
            Descriptor head = tensors.get(next++).descriptor;
            if (!(head.layout instanceof Composite composite)) {
                return;
            }
            must(depth <= 8, "composites nest at most 8 deep");
            must(composite.rule != Composite.OVERLAY || composite.memberCount > 0, "an overlay has a base");
            List<Descriptor> members = new ArrayList<>();
            for (long number = 0; number < composite.memberCount; number++) {
                must(next < tensors.size(), "a composite has all its members");
                Descriptor member = tensors.get(next).descriptor;
                checkMember(head, composite.rule, number == 0, member);
                members.add(member);
                bind(depth + 1);
            }
            if (composite.rule == Composite.PARTITION) {
                checkPartition(head, members);
            }
        }

        private static void checkMember(Descriptor head, int rule, boolean first, Descriptor member) {
            must(rule == Composite.OVERLAY || member.memberRole == null, "only overlay members carry a member section");
            if (rule == Composite.PARTITION || rule == Composite.OVERLAY) {
                boolean sameType = member.typeTag == head.typeTag
                        && Objects.equals(member.extensionType, head.extensionType);
                must(sameType, "a member has the element type of its partition or overlay");
                boolean ofHead = member.shard != null && member.shard.parentShape.equals(head.shape);
                must(ofHead, "partition and overlay members are shards of the head");
            }
            if (rule == Composite.OVERLAY) {
                boolean nested = member.layout instanceof Composite;
                must(nested || member.memberRole != null, "overlay members carry a member section");
                boolean role = member.memberRole == null || (member.memberRole == 1) == first;
                must(role, "the first overlay member alone is the base");
                must(!first || member.shape.equals(head.shape), "the base spans the head");
            }
        }

        private static void checkPartition(Descriptor head, List<Descriptor> members) {
            BigInteger covered = BigInteger.ZERO;
            for (int i = 0; i < members.size(); i++) {
                covered = covered.add(product(members.get(i).shape));
                for (int j = 0; j < i; j++) {
                    must(!overlap(members.get(i), members.get(j)), "the members of a partition do not overlap");
                }
            }
            must(covered.equals(product(head.shape)), "the members of a partition cover the head");
        }

        private static boolean overlap(Descriptor a, Descriptor b) {
            for (int k = 0; k < a.shape.size(); k++) {
                BigInteger low = a.shard.offset.get(k).max(b.shard.offset.get(k));
                BigInteger endOfA = a.shard.offset.get(k).add(a.shape.get(k));
                BigInteger endOfB = b.shard.offset.get(k).add(b.shape.get(k));
                if (atLeast(low, endOfA.min(endOfB))) {
                    return false;
                }
            }
            return true;
        }
    }

    /** The descriptor that is all of the input. */
    private static Map<String, Object> readDescriptor(ByteBuffer data) {
        Fields in = new Fields(data.duplicate());
        Descriptor descriptor = Descriptor.read(in);
        must(in.remaining() == 0, "nothing follows the descriptor");
        return object("form", "descriptor", "descriptor", descriptor.toJson());
    }

    private static Map<String, Object> readStream(ByteBuffer data) {
        Fields in = new Fields(data.duplicate());
        List<Tensor> tensors = new ArrayList<>();
        while (in.remaining() > 0) {
            int offset = in.position();
            Descriptor descriptor = Descriptor.read(in);
            List<ByteBuffer> buffers = new ArrayList<>();
            for (Handle handle : descriptor.handles) {
                must(atLeast(big(in.remaining()), handle.byteSize), "the stream ends inside a buffer");
                buffers.add(in.view(handle.byteSize.longValue()).bytes);
            }
            tensors.add(new Tensor(null, descriptor, buffers, offset, in.position()));
        }
        new Binder(tensors).bindAll();
        return object("form", "stream", "tensors", tensors);
    }

    // ---- the container ------------------------------------------------------------------------------------------------

    private enum Kind {
        STRING, I64, U64, F64, BOOL, BYTES, ARRAY;

        static Kind of(int tag, Kind last) {
            must(tag >= 1 && tag <= last.tag(), "a value's tag is known");
            return values()[tag - 1];
        }

        int tag() {
            return ordinal() + 1;
        }

        @Override
        public String toString() {
            return name().toLowerCase(java.util.Locale.ROOT);
        }

        /** The value as it prints. */
        Object read(Fields in) {
            return switch (this) {
                case STRING -> in.text(in.u32());
                case I64 -> in.i64();
                case U64 -> in.u64();
                case F64 -> bits64(in.i64());
                case BOOL -> {
                    int value = in.u8();
                    must(value <= 1, "a bool is 0 or 1");
                    yield value == 1;
                }
                case BYTES -> hex(in.copy(in.u32()));
                case ARRAY -> throw new IllegalStateException("an array has a kind of its own for its elements");
            };
        }
    }

    private static List<Map<String, Object>> readMetadata(Fields in) {
        List<Map<String, Object>> entries = new ArrayList<>();
        Set<String> seen = new HashSet<>();
        ByteBuffer section = in.bytes.duplicate();
        Map<String, Object> last = Map.of();
        int unsealed = 0;
        for (long left = in.u32(); left > 0; left--) {
            unsealed = in.position();
            String key = in.name();
            must(seen.add(key), "metadata keys are unique");
            Kind kind = Kind.of(in.u8(), Kind.ARRAY);
            Map<String, Object> entry = object("key", key, "kind", kind.toString());
            if (kind == Kind.ARRAY) {
                Kind elementKind = Kind.of(in.u8(), Kind.BYTES);
                List<Object> values = new ArrayList<>();
                for (long count = in.u32(); count > 0; count--) {
                    values.add(elementKind.read(in));
                }
                entry.put("element_kind", elementKind.toString());
                entry.put("value", values);
            } else {
                entry.put("value", kind.read(in));
            }
            entries.add(entry);
            last = entry;
        }
        must(in.remaining() == 0, "kv_length is what the entries take");
        if (SEAL_KEY.equals(last.get("key")) && "u64".equals(last.get("kind"))) { // it is for all that stands before it
            BigInteger crc = big(new Fields(section.limit(unsealed)).crc32c());
            must(crc.equals(last.get("value")), "the checksum of the metadata is the one recorded");
        }
        return entries;
    }

    private record Entry(String name, BigInteger descriptorOffset, long descriptorLength, BigInteger dataOffset,
            BigInteger dataLength) {
        static final Comparator<Entry> BY_NAME =
                (a, b) -> Arrays.compareUnsigned(a.name.getBytes(StandardCharsets.UTF_8),
                        b.name.getBytes(StandardCharsets.UTF_8));
        static final Comparator<Entry> BY_OFFSET = Comparator.comparing(Entry::descriptorOffset);

        static Entry read(Fields in) {
            var entry = new Entry(in.name(), in.u64(), in.u32(), in.u64(), in.u64());
            must(in.u32() == 0, "an index entry's flags are 0");
            return entry;
        }

        void write(Out out) {
            out.name(name).u64(descriptorOffset).u32(descriptorLength).u64(dataOffset).u64(dataLength).u32(0);
        }

        Map<String, Object> toJson() {
            return object("name", name, "descriptor_offset", descriptorOffset, "descriptor_length", descriptorLength,
                    "data_offset", dataOffset, "data_length", dataLength, "flags", 0);
        }
    }

    private static final class FileReader {
        /** What takes a part of the file, and how many bytes of padding may follow it. */
        private record Extent(int start, int end, long slack) {}

        private final ByteBuffer data;
        private final int limit;
        private final List<Extent> extents = new ArrayList<>();

        FileReader(ByteBuffer data) {
            this.data = data;
            this.limit = data.limit() - TRAILER_SIZE;
        }

        private Fields slice(int start, int end) {
            return new Fields(data.duplicate().position(start).limit(end));
        }

        /** A section that trailer or index place. */
        private Fields section(BigInteger start, BigInteger length, long alignment, String what) {
            boolean fits = atLeast(start, big(HEADER_SIZE)) && atLeast(big(limit), start.add(length))
                    && start.mod(big(alignment)).signum() == 0;
            must(fits, what + " is aligned, behind the header and before the trailer");
            return slice(start.intValue(), start.intValue() + length.intValue());
        }

        /** Notes that a section takes its part of the file. */
        private Fields taken(Fields section, long slack) {
            extents.add(new Extent(section.position(), section.position() + section.remaining(), slack));
            return section;
        }

        private void checkPadding(int start, int end) {
            must(slice(start, end).allZero(), "padding is zero");
        }

        Map<String, Object> read() {
            must(data.limit() >= HEADER_SIZE, "a file has a header");
            Fields in = slice(0, HEADER_SIZE);
            in.magic("HRRYFILE");
            int major = in.u8();
            int minor = in.u8();
            must(major == 1, "the container's major version is 1");
            in.reserved(2);
            long flags = in.u32();
            must(flags < 8, "file_flags has three bits");
            long alignment = in.u32();
            must(isPowerOfTwo(alignment) && alignment >= 4096 && alignment <= 2097152,
                    "data_buffer_alignment is a power of two, 4096 to 2097152");
            BigInteger first = in.u64();
            must(atLeast(first, big(HEADER_SIZE)) && first.mod(big(8)).signum() == 0,
                    "the first descriptor is at a multiple of 8");
            Map<String, Object> header = object("container_major", major, "container_minor", minor, "file_flags", flags,
                    "data_buffer_alignment", alignment, "first_descriptor_offset", first, "tensor_count_hint", in.u64());
            in.reserved(28);

            must(limit >= HEADER_SIZE, "a file has room for its trailer");
            in = slice(limit, data.limit());
            BigInteger indexOffset = in.u64();
            BigInteger indexLength = in.u64();
            BigInteger kvOffset = in.u64();
            long kvLength = in.u32();
            long indexCrc = in.u32();
            in.reserved(4);
            in.magic("HRRY");
            Map<String, Object> trailer = object("index_offset", indexOffset, "index_length", indexLength, "kv_offset",
                    kvOffset, "kv_length", kvLength, "index_crc32c", bits32(indexCrc));

            List<Map<String, Object>> metadata = null;
            must((kvOffset.signum() == 0) == (kvLength == 0), "kv_offset and kv_length are both 0 or both not");
            if (kvLength > 0) {
                metadata = readMetadata(taken(section(kvOffset, big(kvLength), 8, "the KV section"), 7));
            }
            must(metadata != null || (flags & HAS_KV_METADATA) == 0, "HAS_KV_METADATA needs a KV section");
            in = taken(section(indexOffset, indexLength, 8, "the index"), 7);
            long crc = (flags & HAS_INDEX_CRC32C) == 0 ? 0 : in.crc32c();
            must(crc == indexCrc, "index_crc32c is that of the index, or 0 without its flag");
            List<Entry> index = readIndex(in, (flags & SORTED_INDEX) != 0);

            List<Entry> ordered = index.stream().sorted(Entry.BY_OFFSET).toList();
            must(ordered.isEmpty() || ordered.get(0).descriptorOffset.equals(first), "first_descriptor_offset is right");
            List<Tensor> tensors = new ArrayList<>();
            int reached = HEADER_SIZE;
            for (Entry entry : ordered) {
                Tensor tensor = readTensor(entry, alignment);
                must(tensor.offset >= reached, "tensors follow one another");
                reached = tensor.end;
                tensors.add(tensor);
            }
            new Binder(tensors).bindAll();
            int room = first.min(big(limit)).intValue();
            boolean right = !ordered.isEmpty() || extents.stream().allMatch(extent -> extent.start >= room);
            must(right, "first_descriptor_offset is not beyond what comes first");
            taken(slice(0, HEADER_SIZE), room - HEADER_SIZE + (ordered.isEmpty() ? 7 : 0));
            taken(slice(limit, data.limit()), 0);
            checkExtents();
            checkChecksums(metadata, tensors);
            return object("form", "file", "header", header, "kv_metadata", metadata, "index",
                    index.stream().map(Entry::toJson).toList(), "trailer", trailer, "tensors", tensors);
        }

        private static List<Entry> readIndex(Fields in, boolean sorted) {
            List<Entry> entries = new ArrayList<>();
            Set<String> seen = new HashSet<>();
            Comparator<Entry> order = sorted ? Entry.BY_NAME : Entry.BY_OFFSET;
            BigInteger count = in.u64();
            for (long read = 0; !big(read).equals(count); read++) {
                Entry entry = Entry.read(in);
                must(seen.add(entry.name), "tensor names are unique");
                boolean ascends = entries.isEmpty() || order.compare(entries.get(entries.size() - 1), entry) < 0;
                must(ascends, sorted ? "the index is sorted by name" : "the index is in write order");
                entries.add(entry);
            }
            must(in.remaining() == 0, "index_length is what the entries take");
            return entries;
        }

        private Tensor readTensor(Entry entry, long alignment) {
            Fields in = taken(section(entry.descriptorOffset, big(entry.descriptorLength), 8, "a descriptor"), alignment - 1);
            int offset = in.position();
            Descriptor descriptor = Descriptor.read(in);
            must(in.remaining() == 0, "the index tells the descriptor's length");
            List<ByteBuffer> buffers = new ArrayList<>();
            if (descriptor.layout instanceof Composite) {
                must(entry.dataLength.signum() == 0, "a composite head has no data");
                return new Tensor(entry.name, descriptor, buffers, offset, in.position());
            }
            BigInteger unit = big(alignment);
            BigInteger at = entry.dataOffset;
            BigInteger next = ceilDivide(big(in.position()), unit).multiply(unit);
            must(at.equals(next), "data is at the next multiple of data_buffer_alignment");
            if (entry.dataLength.signum() > 0) {
                taken(section(at, entry.dataLength, 1, "data"), 7);
            }
            for (Handle handle : descriptor.handles) {
                Fields buffer = section(ceilDivide(at, unit).multiply(unit), handle.byteSize, alignment, "a buffer");
                checkPadding(at.intValue(), buffer.position());
                at = big(buffer.position()).add(handle.byteSize);
                buffers.add(buffer.bytes);
            }
            must(at.subtract(entry.dataOffset).equals(entry.dataLength), "data_length spans the buffers");
            return new Tensor(entry.name, descriptor, buffers, offset, at.intValue());
        }

        /** Every byte belongs to one thing, or is one of few enough zeros between two things. */
        private void checkExtents() {
            extents.sort(Comparator.comparingInt(Extent::start).thenComparingInt(Extent::end));
            for (int i = 1; i < extents.size(); i++) {
                Extent before = extents.get(i - 1);
                int start = extents.get(i).start;
                must(start >= before.end, "no two things take the same byte");
                must(start - before.end <= before.slack, "no hole is between two things");
                checkPadding(before.end, start);
            }
        }

        private void checkChecksums(List<Map<String, Object>> metadata, List<Tensor> tensors) {
            if (metadata == null) {
                return;
            }
            for (Map<String, Object> entry : metadata) {
                if (entry.get("key").equals(CHECKSUMS_KEY)) {
                    must("u64".equals(entry.get("element_kind")), CHECKSUMS_KEY + " is an array of u64");
                    List<BigInteger> actual = new ArrayList<>();
                    for (Tensor tensor : tensors) {
                        int end = tensor.offset + tensor.descriptor.length;
                        actual.add(big(new Fields(data.duplicate().position(tensor.offset).limit(end)).crc32c()));
                        tensor.buffers.forEach(buffer -> actual.add(big(new Fields(buffer.duplicate()).crc32c())));
                    }
                    must(actual.equals(entry.get("value")), "the checksums are those recorded");
                }
            }
        }
    }

    private enum Form { FILE, STREAM, DESCRIPTOR }

    private static Map<String, Object> read(byte[] data, int size, Form form) {
        ByteBuffer bytes = ByteBuffer.wrap(data, 0, size).slice().asReadOnlyBuffer();
        return switch (form) {
            case FILE -> new FileReader(bytes).read();
            case STREAM -> readStream(bytes);
            case DESCRIPTOR -> readDescriptor(bytes);
        };
    }

    private static String toJson(Map<String, Object> document) {
        Map<String, Object> shaped = new LinkedHashMap<>(document);
        shaped.computeIfPresent("tensors", (name, list) ->
                ((List<?>) list).stream().map(tensor -> ((Tensor) tensor).toJson()).toList());
        StringBuilder out = new StringBuilder();
        writeJson(out, shaped);
        return out.toString();
    }

    // ---- writing ------------------------------------------------------------------------------------------------------

    private record Draft(String name, Descriptor descriptor, List<byte[]> buffers) {
        static Draft of(String name, int typeTag, List<Integer> shape, Layout layout, Quantization quantization,
                byte[]... buffers) {
            List<Handle> handles = Arrays.stream(buffers).map(buffer -> Handle.onCpu(buffer.length)).toList();
            int flags = quantization == null ? 0 : HAS_QUANTIZATION;
            List<BigInteger> sizes = shape.stream().map(size -> big(size)).toList();
            var descriptor = new Descriptor(1, 0, 0, flags, typeTag, sizes, BigInteger.ZERO, layout, handles,
                    quantization, null, null, null, null);
            return new Draft(name, descriptor, List.of(buffers));
        }

        static Draft flat(String name, int typeTag, int length, byte[] data) {
            return of(name, typeTag, List.of(length), new Dense(ROW_MAJOR), null, data);
        }
    }

    private interface Formula {
        long at(int i);
    }

    private static byte[] filled(int width, int count, Formula formula) {
        Out out = new Out();
        for (int i = 0; i < count; i++) {
            out.number(width, formula.at(i));
        }
        return out.toBytes();
    }

    /** The worked example of the specification: layer 3, key, two sequences of which the second shares page 0. */
    private static Draft workedExample() {
        var layout = new BlockPaged(4, big(5), 0, 2, 0, 3, 0);
        return Draft.of("layers.3.key", 0x01, List.of(9, 2, 8), layout, null, filled(2, 320, i -> 0x3C00 + i),
                packed(4, 0, 1, 0), packed(4, 0, 2, 3));
    }

    private static Draft emptyBatch() {
        var layout = new BlockPaged(16, BigInteger.ZERO, 0, 0, 1, U32_MAX, 1);
        return Draft.of("empty", 0x03, List.of(0, 2, 8), layout, null, packed(4), packed(8), packed(8, 0));
    }

    private static Draft int8PageSlot() {
        var layout = new BlockPaged(4, big(5), 0, 2, 2, U32_MAX, 0);
        var scheme = new Parametrized(0, 4L, 3, 4L, 0x01);
        return Draft.of("cache", 0x10, List.of(9, 2, 8), layout, new Quantization(24, new Header(3, 1, 0), scheme),
                filled(1, 320, i -> 7 * i + 3), packed(4, 0, 1, 0), packed(4, 0, 2, 3),
                filled(2, 20, slot -> 0x3000 + 8 * slot), filled(4, 20, slot -> slot - 10));
    }

    private static List<Draft> multiLayers() {
        List<Draft> drafts = new ArrayList<>();
        for (int layer = 0; layer < 2; layer++) {
            for (int role = 0; role < 2; role++) {
                int offset = layer * 641 + role * 97;
                drafts.add(Draft.of("layers." + layer + (role == 0 ? ".key" : ".value"), 0x02, List.of(17, 2, 4),
                        new BlockPaged(4, big(6), 0, 3, role, layer, 1), null,
                        filled(2, 192, i -> i * 2477L + offset), packed(8, 3, 1, 4, 3, 5), packed(8, 0, 3, 5, 5)));
            }
        }
        return drafts;
    }

    private static Draft seqLens() {
        return Draft.flat("seq_lens", 0x15, 3, packed(4, 10, 7, 0));
    }

    /** A value of the KV section to be written: its tag, and its payload. */
    private record Value(String key, Kind kind, byte[] payload) {
        static byte[] counted(byte[] raw) {
            return new Out().u32(raw.length).raw(raw).toBytes();
        }

        static byte[] text(String text) {
            return counted(text.getBytes(StandardCharsets.UTF_8));
        }

        static byte[] array(Kind elementKind, byte[]... elements) {
            Out out = new Out().u8(elementKind.tag()).u32(elements.length);
            for (byte[] element : elements) {
                out.raw(element);
            }
            return out.toBytes();
        }
    }

    private static List<Value> multiMetadata() {
        return List.of(
                new Value("hurray_wire.snapshot", Kind.I64, packed(8, 1)),
                new Value("producer", Kind.STRING, Value.text("foreign")),
                new Value("model.id", Kind.STRING, Value.text("llama-\u03b2")),
                new Value("n", Kind.I64, packed(8, -7)),
                new Value("u", Kind.U64, packed(8, U64_MAX.longValue())),
                new Value("f", Kind.F64, packed(8, Double.doubleToRawLongBits(0.1))),
                new Value("b", Kind.BOOL, packed(1, 1)),
                new Value("raw", Kind.BYTES, Value.counted(packed(1, 0x00, 0xFF, 0x01))),
                new Value("arr", Kind.ARRAY, Value.array(Kind.STRING, Value.text("a"), Value.text(""))),
                new Value("ints", Kind.ARRAY, Value.array(Kind.I64, packed(8, -1), packed(8, 2))));
    }

    private static byte[] encodeMetadata(List<Value> values) {
        Out out = new Out().u32(values.size());
        values.forEach(value -> out.name(value.key).u8(value.kind.tag()).raw(value.payload));
        return out.toBytes();
    }

    private static long crc32c(byte[] data) {
        return new Fields(ByteBuffer.wrap(data)).crc32c();
    }

    /** Writes a file in one forward pass; the fields are the options that cases differ in. */
    private record FileWriter(int flags, int alignment, long hint, List<Value> metadata, boolean checksums) {
        byte[] write(List<Draft> drafts) {
            Out out = new Out().ascii("HRRYFILE").u8(1).u8(0).zeros(2).u32(flags).u32(alignment).u64(HEADER_SIZE);
            out.u64(hint).zeros(28);
            List<Entry> entries = new ArrayList<>();
            List<byte[]> sums = new ArrayList<>();
            for (Draft draft : drafts) {
                byte[] descriptor = draft.descriptor.toBytes();
                int start = out.pad(8).size();
                int dataStart = out.raw(descriptor).pad(alignment).size();
                sums.add(packed(8, crc32c(descriptor)));
                for (byte[] buffer : draft.buffers) {
                    out.pad(alignment).raw(buffer);
                    sums.add(packed(8, crc32c(buffer)));
                }
                entries.add(new Entry(draft.name, big(start), descriptor.length, big(dataStart),
                        big(out.size() - dataStart)));
            }
            List<Value> values = new ArrayList<>(metadata);
            if (checksums) {
                values.add(new Value(CHECKSUMS_KEY, Kind.ARRAY, Value.array(Kind.U64, sums.toArray(byte[][]::new))));
            }
            byte[] kv = values.isEmpty() ? new byte[0] : encodeMetadata(values);
            int kvOffset = out.pad(8).size();
            out.raw(kv);
            if ((flags & SORTED_INDEX) != 0) {
                entries.sort(Entry.BY_NAME);
            }
            Out index = new Out().u64(entries.size());
            entries.forEach(entry -> entry.write(index));
            int indexOffset = out.pad(8).size();
            long crc = (flags & HAS_INDEX_CRC32C) == 0 ? 0 : crc32c(index.toBytes());
            out.raw(index.toBytes()).u64(indexOffset).u64(index.size()).u64(kv.length == 0 ? 0 : kvOffset);
            return out.u32(kv.length).u32(crc).zeros(4).ascii("HRRY").toBytes();
        }
    }

    private static byte[] encodeStream(List<Draft> drafts) {
        Out out = new Out();
        for (Draft draft : drafts) {
            out.raw(draft.descriptor.toBytes());
            draft.buffers.forEach(out::raw);
        }
        return out.toBytes();
    }

    private static byte[] groupStream() {
        byte[] kv = encodeMetadata(multiMetadata());
        List<Draft> drafts = new ArrayList<>(multiLayers());
        drafts.add(0, seqLens());
        drafts.add(0, Draft.flat("", 0x11, kv.length, kv));
        drafts.add(0, Draft.of("", 0x11, List.of(), new Composite(Composite.GROUP, 0, drafts.size()), null));
        return encodeStream(drafts);
    }

    /** The bytes of a case, or null if there is none of that name. */
    private static byte[] encodeCase(String name) {
        var plain = new FileWriter(HAS_INDEX_CRC32C, 4096, -1, List.of(), false);
        switch (name) {
            case "spec_example":
                return plain.write(List.of(workedExample()));
            case "multi":
                List<Draft> drafts = new ArrayList<>(multiLayers());
                drafts.add(seqLens());
                return new FileWriter(HAS_KV_METADATA | HAS_INDEX_CRC32C, 4096, -1, multiMetadata(), true).write(drafts);
            case "empty_batch":
                return new FileWriter(0, 4096, 1, List.of(), false).write(List.of(emptyBatch()));
            case "int8_page_slot":
                return plain.write(List.of(int8PageSlot()));
            case "unflagged_metadata":
                List<Value> metadata = List.of(new Value("producer", Kind.STRING, Value.text("foreign")),
                        new Value("tensor_count", Kind.I64, packed(8, 2)));
                return new FileWriter(SORTED_INDEX | HAS_INDEX_CRC32C, 8192, -1, metadata, false)
                        .write(List.of(workedExample(), Draft.flat("bytes", 0x11, 5, packed(1, 1, 2, 3, 4, 5))));
            case "stream":
                return encodeStream(List.of(workedExample(), emptyBatch()));
            case "group_stream":
                return groupStream();
            default:
                return null;
        }
    }

    // ---- commands -----------------------------------------------------------------------------------------------------

    private static int write(String name, Path out) throws IOException {
        byte[] bytes = encodeCase(name);
        if (bytes == null) {
            System.err.println("there is no case named " + name);
            return 2;
        }
        Files.write(out, bytes);
        return 0;
    }

    private static int dump(Path path, Form form, PrintStream out) throws IOException {
        byte[] data = Files.readAllBytes(path);
        try {
            out.println(toJson(read(data, data.length, form)));
            return 0;
        } catch (Unsupported refusal) {
            out.println("\"unsupported\"");
            System.err.println(path + ": " + refusal.getMessage());
            return 3;
        } catch (Refusal refusal) {
            System.err.println(path + ": " + refusal.getMessage());
            return 1;
        }
    }

    private static int check(Form form, PrintStream out) throws IOException {
        var paths = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String path = paths.readLine(); path != null; path = paths.readLine()) {
            try {
                byte[] data = Files.readAllBytes(Path.of(path));
                read(data, data.length, form);
                out.println("ok");
            } catch (Unsupported refusal) {
                out.println("unsupported");
            } catch (Refusal refusal) {
                out.println("refused: " + refusal.getMessage());
            } catch (IOException error) {
                out.println("refused: " + error);
            }
        }
        return 0;
    }

    private static int cuts(Path path, Form form, PrintStream out) throws IOException {
        byte[] data = Files.readAllBytes(path);
        List<Integer> accepted = new ArrayList<>();
        for (int size = 0; size <= data.length; size++) {
            try {
                read(data, size, form);
                accepted.add(size);
            } catch (Refusal refusal) {
                // a cut is expected to be refused
            }
        }
        out.println(accepted);
        return 0;
    }

    private static int run(List<String> arguments, PrintStream out) throws IOException {
        String command = arguments.isEmpty() ? "" : arguments.get(0);
        String option = arguments.size() < 2 ? "" : arguments.get(1);
        Form form = switch (option) {
            case "--stream" -> Form.STREAM;
            case "--descriptor" -> Form.DESCRIPTOR;
            default -> Form.FILE;
        };
        List<String> rest = arguments.subList(Math.min(arguments.size(), form == Form.FILE ? 1 : 2), arguments.size());
        if (command.equals("write") && form == Form.FILE && rest.size() == 2) {
            return write(rest.get(0), Path.of(rest.get(1)));
        } else if (command.equals("check") && rest.isEmpty()) {
            return check(form, out);
        }
        boolean dumps = command.equals("dump");
        if (rest.isEmpty() || !(dumps || command.equals("cuts"))) {
            System.err.println("usage: Hurray write CASE OUT | dump [FORM] FILE... | check [FORM] | cuts [FORM] FILE...");
            System.err.println("FORM is --stream or --descriptor; otherwise inputs are files");
            return 2;
        }
        int status = 0;
        for (int i = 0; i < rest.size() && status == 0; i++) {
            Path path = Path.of(rest.get(i));
            status = dumps ? dump(path, form, out) : cuts(path, form, out);
        }
        return status;
    }

    public static void main(String[] arguments) {
        var out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        int status;
        try {
            status = run(List.of(arguments), out);
        } catch (IOException error) {
            System.err.println(error);
            status = 1;
        }
        out.flush();
        System.exit(status);
    }
}
