// Which instruction sets there are, which of them this processor has, and which is in use.
#pragma once

#include "kernels.h"

namespace sottovoce {

// The tables that were built, the portable one first and the best last; a null ends them.
const Kernels* const* built_kernels();

// Whether this processor, and the system on it, runs a table.
bool runs_here(const Kernels& kernels);

// By name; nothing where it was not built or does not run here.
const Kernels* find_kernels(const char* name);

// The best that runs here.
const Kernels* best_kernels();

// In use: the best, until another is taken.
const Kernels& kernels_in_use();
void use_kernels(const Kernels& kernels);

}  // namespace sottovoce
