// Silero VAD for other languages; see api.cpp.
#include "guarded.h"
#include "isa.h"
#include "silero.h"

using namespace sottovoce;

// tables: cosines, sines, weight and bias of each convolution, weight and bias of the cell's input, its recurrent
// weight, the weight of the output (128) and its bias (1); weights as (n_in, n_out).
SV_API Silero* sv_silero_new(const float* const* tables) {
    return guarded([&] {
        auto* network = new Silero;
        network->cosines = {tables[0], nullptr, 128, 144};
        network->sines = {tables[1], nullptr, 128, 128};
        const int sizes[4][2] = {{3 * 129, 128}, {3 * 128, 64}, {2 * 64, 64}, {64, 128}};
        for (int layer = 0; layer < 4; ++layer)
            network->layers[layer] = {tables[2 + 2 * layer], tables[3 + 2 * layer], sizes[layer][0], sizes[layer][1]};
        network->input = {tables[10], tables[11], kSpeechState, 4 * kSpeechState};
        network->recurrent = {tables[12], nullptr, kSpeechState, 4 * kSpeechState};
        network->output.assign(tables[13], tables[13] + kSpeechState);
        network->output_bias = *tables[14];
        return network;
    });
}
SV_API void sv_silero_free(Silero* network) { delete network; }

// samples: 64 before the first window, and 512 of each. hidden, cell: (128), changed. probabilities: (n_windows).
SV_API int sv_silero_detect(const Silero* network, const float* samples, int n_windows, float* hidden, float* cell,
                            float* probabilities) {
    return guarded([&] {
        kernels_in_use().detect_speech(*network, {samples, n_windows, hidden, cell, probabilities});
        return 1;
    });
}
