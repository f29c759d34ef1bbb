// Runs the tile instructions of a process on a processor without them: each raises SIGILL, and the handler interprets it from its encoding.
//
// Independent of the emulation in tiles.h: encodings are those of Intel's manual, and shapes come from the configuration in memory.
#include <signal.h>
#include <ucontext.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>

#include "decoder/tile_unit.h"
#include "exports.h"

namespace {

struct Registers {
    bool configured;
    uint16_t row_bytes[8];
    uint8_t rows[8];
    uint8_t data[8][16][64];
};

thread_local Registers registers;
std::atomic<int> interpreted{0}, configured{0};

[[noreturn]] void refuse(const char* reason) {
    // What a signal handler may call.
    for (const char* text : {"tile trap: ", reason, "\n"})
        if (write(STDERR_FILENO, text, strlen(text)) < 0) break;
    _exit(70);
}

void require(bool holds, const char* rule) {
    if (!holds) refuse(rule);
}

struct Instruction {
    int opcode, prefix, reg, rm, vvvv, length;
    bool of_tile;  // the operand is a tile, not memory
    uint8_t* address;
    int64_t stride;
};

int64_t general(const ucontext_t* context, int number) {
    static const int order[] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                                REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};
    return context->uc_mcontext.gregs[order[number]];
}

// VEX.128 in the map 0F38 with W0; others are no tile instructions.
Instruction decode(const ucontext_t* context, const uint8_t* code) {
    require(code[0] == 0xc4 && (code[1] & 0x9f) == 0x82 && (code[2] & 0x84) == 0, "not a tile instruction");
    const int index_extension = code[1] & 0x40 ? 0 : 8, base_extension = code[1] & 0x20 ? 0 : 8;
    Instruction found{code[3], code[2] & 3, code[4] >> 3 & 7, code[4] & 7, (code[2] >> 3 & 15) ^ 15, 5, code[4] >> 6 == 3, nullptr, 0};
    if (found.of_tile) return found;
    const int mode = code[4] >> 6;
    int64_t base = 0;
    bool relative = false;
    if (found.rm == 4) {
        const int sib = code[found.length++], index = (sib >> 3 & 7) + index_extension;
        require(mode != 0 || (sib & 7) != 5, "an address without a base");
        if (index != 4) found.stride = general(context, index) << (sib >> 6);
        base = general(context, (sib & 7) + base_extension);
    } else if (mode == 0 && found.rm == 5) {
        relative = true;
    } else {
        base = general(context, found.rm + base_extension);
    }
    if (mode == 1) {
        base += static_cast<int8_t>(code[found.length++]);
    } else if (mode == 2 || relative) {
        int32_t displacement;
        memcpy(&displacement, code + found.length, sizeof displacement);
        base += displacement;
        found.length += 4;
    }
    if (relative) base += reinterpret_cast<int64_t>(code) + found.length;
    found.address = reinterpret_cast<uint8_t*>(base);
    return found;
}

void release() {
    if (registers.configured) --configured;
    registers.configured = false;
}

void configure(const uint8_t* from) {
    release();
    memset(&registers, 0, sizeof registers);
    require(from[0] == 1 && from[1] == 0, "palette 1, from row 0");
    for (int i = 2; i < 16; ++i) require(from[i] == 0, "reserved bytes");
    for (int i = 32; i < 48; ++i) require(from[i] == 0, "columns of tiles beyond 7");
    for (int i = 56; i < 64; ++i) require(from[i] == 0, "rows of tiles beyond 7");
    memcpy(registers.row_bytes, from + 16, sizeof registers.row_bytes);
    memcpy(registers.rows, from + 48, sizeof registers.rows);
    for (int i = 0; i < 8; ++i) require(registers.rows[i] <= 16 && registers.row_bytes[i] <= 64, "a tile of 16 rows and 64 bytes");
    registers.configured = true;
    ++configured;
}

void move(const Instruction& i, bool stores) {
    require(!i.of_tile && i.rm == 4 && i.vvvv == 0, "an address with an index");
    uint8_t loaded[16][64] = {};
    for (int row = 0; row < registers.rows[i.reg]; ++row) {
        uint8_t* memory = i.address + row * i.stride;
        if (stores)
            memcpy(memory, registers.data[i.reg][row], registers.row_bytes[i.reg]);
        else
            memcpy(loaded[row], memory, registers.row_bytes[i.reg]);
    }
    if (!stores) memcpy(registers.data[i.reg], loaded, sizeof loaded);
}

void require_shapes(const Instruction& i) {
    const int sums = i.reg, a = i.rm, b = i.vvvv;
    require(i.of_tile && b < 8 && sums != a && sums != b && a != b, "three tiles");
    require(registers.rows[sums] == registers.rows[a] && registers.row_bytes[sums] == registers.row_bytes[b], "the shape of the sums");
    require(registers.row_bytes[a] == 4 * registers.rows[b] && registers.rows[b] > 0 && registers.rows[a] > 0, "the shape of the factors");
}

float bfloat16(const uint8_t* from) {
    uint8_t bytes[4] = {0, 0, from[0], from[1]};
    float x;
    memcpy(&x, bytes, sizeof x);
    return x;
}

// bfloat16 of `rm` times those of `vvvv`; no number of these tests is denormal.
void multiply_bfloat16(const Instruction& i) {
    require_shapes(i);
    for (int m = 0; m < registers.rows[i.reg]; ++m)
        for (int n = 0; n < registers.row_bytes[i.reg] / 4; ++n) {
            float sum, even = 0.0f, odd = 0.0f;
            memcpy(&sum, registers.data[i.reg][m] + 4 * n, sizeof sum);
            for (int k = 0; k < registers.rows[i.vvvv]; ++k) {
                const uint8_t *x = registers.data[i.rm][m] + 4 * k, *weight = registers.data[i.vvvv][k] + 4 * n;
                even = std::fma(bfloat16(x), bfloat16(weight), even);
                odd = std::fma(bfloat16(x + 2), bfloat16(weight + 2), odd);
            }
            sum += even + odd;
            memcpy(registers.data[i.reg][m] + 4 * n, &sum, sizeof sum);
        }
}

// Signed bytes of `rm` times unsigned ones of `vvvv`.
void multiply(const Instruction& i) {
    require_shapes(i);
    const int sums = i.reg, a = i.rm, b = i.vvvv;
    for (int m = 0; m < registers.rows[sums]; ++m)
        for (int n = 0; n < registers.row_bytes[sums] / 4; ++n) {
            int32_t sum;
            memcpy(&sum, registers.data[sums][m] + 4 * n, sizeof sum);
            for (int k = 0; k < registers.row_bytes[a]; ++k)
                sum += static_cast<int8_t>(registers.data[a][m][k]) * registers.data[b][k / 4][4 * n + k % 4];
            memcpy(registers.data[sums][m] + 4 * n, &sum, sizeof sum);
        }
}

void interpret(const Instruction& i) {
    const int kind = i.opcode << 4 | i.prefix;
    if (kind == 0x490 && !i.of_tile) return require(i.reg == 0, "ldtilecfg"), configure(i.address);
    if (kind == 0x490) return require(i.reg == 0 && i.rm == 0, "tilerelease"), release();
    require(registers.configured, "a configuration before other instructions");
    if (kind == 0x493 && i.of_tile) return require(i.rm == 0, "tilezero"), static_cast<void>(memset(registers.data[i.reg], 0, 1024));
    if (kind == 0x4b3 || kind == 0x4b2) return move(i, kind == 0x4b2);
    if (kind == 0x5e2) return multiply(i);
    if (kind == 0x5c2) return multiply_bfloat16(i);
    refuse("an unknown tile instruction");
}

void trap(int, siginfo_t*, void* given) {
    auto* context = static_cast<ucontext_t*>(given);
    auto& at = context->uc_mcontext.gregs[REG_RIP];
    const Instruction instruction = decode(context, reinterpret_cast<const uint8_t*>(at));
    interpret(instruction);
    at += instruction.length;
    ++interpreted;
}

}  // namespace

// Products take AMX's tiles from now on, whatever the processor has.
FDLP_EXPORT void traps_install() {
    struct sigaction action = {};
    action.sa_sigaction = trap;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    sigaction(SIGILL, &action, nullptr);
    tiles::unit = tiles::Unit::amx;
}

// Interpreted instructions, and threads that have tiles.
FDLP_EXPORT int traps_interpreted() { return interpreted.load(); }
FDLP_EXPORT int traps_configured() { return configured.load(); }
