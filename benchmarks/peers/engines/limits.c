// Reading memory: limits MiB... prints GB/s for each size, all threads of OpenMP reading a part each, again and again.
// cc -O3 -march=native -fopenmp limits.c -o limits
#include <omp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LANES 64  // sums under way at once: 512 bytes, so that loads and not additions are waited for

static uint64_t read_all(const uint64_t *p, size_t count) {
    uint64_t sums[LANES] = {0};
    for (size_t i = 0; i + LANES <= count; i += LANES)
        for (int j = 0; j < LANES; j++) sums[j] += p[i + j];
    uint64_t sum = 0;
    for (int j = 0; j < LANES; j++) sum += sums[j];
    return sum;
}

int main(int argc, char **argv) {
    volatile uint64_t sink = 0;
    for (int k = 1; k < argc; k++) {
        size_t bytes = (size_t)atol(argv[k]) << 20, count = bytes / 8;
        uint64_t *p = aligned_alloc(4096, bytes);
        if (!p) return 1;
        #pragma omp parallel
        {  // touched by whom it is read by
            size_t part = count / omp_get_num_threads(), first = part * omp_get_thread_num();
            memset(p + first, 1, part * 8);
        }
        double best = 0, begun = omp_get_wtime();
        for (int i = 0; i < 5 || omp_get_wtime() - begun < 1.0; i++) {
            double t = omp_get_wtime();
            uint64_t sum = 0;
            #pragma omp parallel reduction(+ : sum)
            {
                size_t part = count / omp_get_num_threads(), first = part * omp_get_thread_num();
                sum += read_all(p + first, part);
            }
            t = omp_get_wtime() - t;
            sink += sum;
            if (bytes / t > best) best = bytes / t;
        }
        printf("%s %.3f\n", argv[k], best / 1e9);
        free(p);
    }
    return 0;
}
