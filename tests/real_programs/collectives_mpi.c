/* The calls of tests/collective/speed.rs, measured and printed alike, with MPI. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *NAMES[] = {"all_reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all"};
static const int LENGTHS[][2] = {{8, 1000}, {31400, 500}, {1 << 20, 100}, {64 << 20, 7}};

static void call(int which, float *all, float *part, int count, int size) {
    switch (which) {
    case 0: MPI_Allreduce(MPI_IN_PLACE, all, count * size, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); break;
    case 1: MPI_Bcast(all, count * size, MPI_FLOAT, 0, MPI_COMM_WORLD); break;
    case 2: MPI_Allgather(part, count, MPI_FLOAT, all, count, MPI_FLOAT, MPI_COMM_WORLD); break;
    case 3: MPI_Reduce_scatter_block(all, part, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); break;
    case 4:
        MPI_Alltoall(all, count, MPI_FLOAT, all + (size_t)count * size, count, MPI_FLOAT, MPI_COMM_WORLD);
        break;
    }
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    int rank, size;
    double taken[2000];
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    for (int which = 0; which < 5; which++) {
        for (int length = 0; length < 4; length++) {
            int bytes = LENGTHS[length][0], times = LENGTHS[length][1], warm = times / 10 + 1;
            int count = bytes / 4 / size > 0 ? bytes / 4 / size : 1;
            size_t whole = (size_t)count * size * (which == 4 ? 2 : 1);
            float *all = malloc(whole * 4), *part = malloc(count * 4);
            for (int i = 0; i < count; i++) part[i] = 1;
            for (int turn = 0; turn < times + warm; turn++) {
                for (size_t i = 0; i < whole; i++) all[i] = 1;
                MPI_Barrier(MPI_COMM_WORLD);
                double begun = MPI_Wtime();
                call(which, all, part, count, size);
                taken[turn] = MPI_Wtime() - begun;
            }
            MPI_Allreduce(MPI_IN_PLACE, taken, times + warm, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
            qsort(taken + warm, times, sizeof *taken, compare);
            if (rank == 0) printf("%s %d %.1f\n", NAMES[which], bytes, taken[warm + times / 2] * 1e6);
            free(all);
            free(part);
        }
    }
    MPI_Finalize();
    return 0;
}
