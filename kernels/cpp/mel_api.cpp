// Mel power for other languages; see api.cpp.
#include "guarded.h"
#include "isa.h"
#include "mel.h"

using namespace sottovoce;

// window: (400). turns: (201, 2), cosine and sine of each. filters: (n_filters, 201) weights of the power of each bin;
// those that are not 0 lie together.
SV_API MelFilters* sv_mel_new(const double* window, const Turn* turns, const float* filters, int n_filters) {
    return guarded([&] {
        auto* mel = new MelFilters;
        mel->window.assign(window, window + kMelFrame);
        mel->turns.assign(turns, turns + kMelBins);
        for (int n = 0; n < n_filters; ++n) {
            const float* filter = filters + static_cast<size_t>(n) * kMelBins;
            int first = 0, last = kMelBins;
            while (first < last && filter[first] == 0.0f) ++first;
            while (first < last && filter[last - 1] == 0.0f) --last;
            mel->filters.push_back({first, last, static_cast<int>(mel->weights.size())});
            mel->weights.insert(mel->weights.end(), filter + first, filter + last);
        }
        return mel;
    });
}
SV_API void sv_mel_free(MelFilters* mel) { delete mel; }

// samples: (160 * (n_frames - 1) + 400). power: (n_filters, n_frames), at least 1e-10, written.
SV_API int sv_mel_power(const MelFilters* mel, const float* samples, int n_frames, float* power) {
    return guarded([&] {
        kernels_in_use().mel_power(*mel, {samples, n_frames, power});
        return 1;
    });
}
