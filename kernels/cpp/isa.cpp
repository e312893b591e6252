#include "isa.h"

#include <atomic>
#include <cstring>

#if defined(__x86_64__) || defined(_M_X64)
#define SOTTOVOCE_X86 1
#if defined(_MSC_VER)
#include <intrin.h>
#else
#include <cpuid.h>
#endif
#endif

#if defined(__linux__)
#include <sys/auxv.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace sottovoce {

extern const Kernels portable_kernels;
#if defined(SOTTOVOCE_X86)
extern const Kernels avx2_kernels;
#if defined(SOTTOVOCE_AVX_VNNI)
extern const Kernels avx2_vnni_kernels;
#endif
#if defined(SOTTOVOCE_AVX512)
extern const Kernels avx512_kernels;
#endif
#if defined(SOTTOVOCE_AVX512_BF16)
extern const Kernels avx512_bf16_kernels;
#endif
#if defined(SOTTOVOCE_AMX)
extern const Kernels amx_kernels;
#endif
#elif defined(SOTTOVOCE_NEON)
extern const Kernels neon_kernels;
#endif

namespace {

const Kernels* const kBuilt[] = {
    &portable_kernels,
#if defined(SOTTOVOCE_X86)
    &avx2_kernels,
#if defined(SOTTOVOCE_AVX_VNNI)
    &avx2_vnni_kernels,
#endif
#if defined(SOTTOVOCE_AVX512)
    &avx512_kernels,
#endif
#if defined(SOTTOVOCE_AVX512_BF16)
    &avx512_bf16_kernels,
#endif
#if defined(SOTTOVOCE_AMX)
    &amx_kernels,
#endif
#elif defined(SOTTOVOCE_NEON)
    &neon_kernels,
#endif
    nullptr,
};

std::atomic<const Kernels*> in_use{nullptr};

#if defined(SOTTOVOCE_X86)

struct Leaf {
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
};

Leaf cpuid(unsigned leaf, unsigned sub) {
    Leaf found;
#if defined(_MSC_VER)
    int words[4];
    __cpuid(words, 0);
    if (static_cast<unsigned>(words[0]) < leaf) return found;
    __cpuidex(words, static_cast<int>(leaf), static_cast<int>(sub));
    found = {static_cast<unsigned>(words[0]), static_cast<unsigned>(words[1]), static_cast<unsigned>(words[2]),
             static_cast<unsigned>(words[3])};
#else
    __get_cpuid_count(leaf, sub, &found.eax, &found.ebx, &found.ecx, &found.edx);
#endif
    return found;
}

unsigned long long enabled_state() {
#if defined(_MSC_VER)
    return _xgetbv(0);
#else
    unsigned low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (static_cast<unsigned long long>(high) << 32) | low;
#endif
}

bool bit(unsigned word, int at) { return (word >> at) & 1u; }

// Linux gives the tiles' registers to a process that asks.
bool may_use_tiles() {
#if defined(__linux__) && defined(SYS_arch_prctl)
    constexpr int kRequestPermission = 0x1023, kTileData = 18;
    return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
    return false;
#endif
}

struct Processor {
    bool avx2 = false, avx_vnni = false, avx512 = false, avx512_bf16 = false, amx = false;

    Processor() {
        const Leaf first = cpuid(1, 0), wide = cpuid(7, 0), more = cpuid(7, 1);
        if (!bit(first.ecx, 27)) return;  // the system saves no wide registers
        const unsigned long long state = enabled_state();
        const bool saves_256 = (state & 0x6) == 0x6, saves_512 = (state & 0xe6) == 0xe6;
        const bool saves_tiles = (state & 0x60000) == 0x60000;
        avx2 = saves_256 && bit(wide.ebx, 5) && bit(first.ecx, 12);
        avx_vnni = avx2 && bit(more.eax, 4);
        const bool words = bit(wide.ebx, 16) && bit(wide.ebx, 17) && bit(wide.ebx, 30) && bit(wide.ebx, 31);
        avx512 = avx2 && saves_512 && words && bit(wide.ecx, 11);
        avx512_bf16 = avx512 && bit(more.eax, 5);
        amx = avx512_bf16 && saves_tiles && bit(wide.edx, 22) && bit(wide.edx, 24) && bit(wide.edx, 25);
        amx = amx && may_use_tiles();
    }
};

const Processor& processor() {
    static const Processor here;
    return here;
}

#elif defined(SOTTOVOCE_NEON)

// Every processor of Apple's that is built for has them.
bool has_dot_products() {
#if defined(__linux__)
    constexpr unsigned long kDotProducts = 1ul << 20;  // HWCAP_ASIMDDP
    return getauxval(AT_HWCAP) & kDotProducts;
#elif defined(__APPLE__)
    return true;
#else
    return false;
#endif
}

#endif

}  // namespace

const Kernels* const* built_kernels() { return kBuilt; }

bool runs_here(const Kernels& kernels) {
#if defined(SOTTOVOCE_X86)
    if (&kernels == &avx2_kernels) return processor().avx2;
#if defined(SOTTOVOCE_AVX_VNNI)
    if (&kernels == &avx2_vnni_kernels) return processor().avx_vnni;
#endif
#if defined(SOTTOVOCE_AVX512)
    if (&kernels == &avx512_kernels) return processor().avx512;
#endif
#if defined(SOTTOVOCE_AVX512_BF16)
    if (&kernels == &avx512_bf16_kernels) return processor().avx512_bf16;
#endif
#if defined(SOTTOVOCE_AMX)
    if (&kernels == &amx_kernels) return processor().amx;
#endif
#elif defined(SOTTOVOCE_NEON)
    if (&kernels == &neon_kernels) return has_dot_products();
#endif
    return true;
}

const Kernels* find_kernels(const char* name) {
    for (const Kernels* const* at = kBuilt; *at; ++at)
        if (std::strcmp((*at)->name, name) == 0) return runs_here(**at) ? *at : nullptr;
    return nullptr;
}

const Kernels* best_kernels() {
    const Kernels* best = kBuilt[0];
    for (const Kernels* const* at = kBuilt; *at; ++at)
        if (runs_here(**at)) best = *at;
    return best;
}

const Kernels& kernels_in_use() {
    const Kernels* kernels = in_use.load(std::memory_order_acquire);
    if (!kernels) {
        kernels = best_kernels();
        in_use.store(kernels, std::memory_order_release);
    }
    return *kernels;
}

void use_kernels(const Kernels& kernels) { in_use.store(&kernels, std::memory_order_release); }

}  // namespace sottovoce
