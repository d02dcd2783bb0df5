/* The calls of tests/collective/speed.rs, measured and printed alike, with MPI. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

/* As in speed.rs. */
enum { WARM = 4, FEWEST = 5, MOST = 1000 };
static const double BUDGET = 0.25;
static const int LENGTHS[] = {8, 31400, 1 << 20, 64 << 20};
static const char *NAMES[] = {"all_reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all", "send_receive", "barrier"};

static int rank, size, count;
static float *all, *part;

static double timed(int which) {
    size_t whole = (size_t)count * size * (which >= 4 ? 2 : 1);
    for (size_t i = 0; i < whole; i++) all[i] = 1;
    MPI_Barrier(MPI_COMM_WORLD);
    double begun = MPI_Wtime();
    switch (which) {
    case 0: MPI_Allreduce(MPI_IN_PLACE, all, count * size, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); break;
    case 1: MPI_Bcast(all, count * size, MPI_FLOAT, 0, MPI_COMM_WORLD); break;
    case 2: MPI_Allgather(part, count, MPI_FLOAT, all, count, MPI_FLOAT, MPI_COMM_WORLD); break;
    case 3: MPI_Reduce_scatter_block(all, part, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); break;
    case 4:
        MPI_Alltoall(all, count, MPI_FLOAT, all + (size_t)count * size, count, MPI_FLOAT, MPI_COMM_WORLD);
        break;
    case 5:
        MPI_Sendrecv(all, count * size, MPI_FLOAT, (rank + 1) % size, 0, all + (size_t)count * size, count * size, MPI_FLOAT,
                     (rank + size - 1) % size, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        break;
    case 6: MPI_Barrier(MPI_COMM_WORLD); break;
    }
    return MPI_Wtime() - begun;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void measure(int which, int bytes) {
    static double taken[MOST];
    count = bytes / 4 / size > 0 ? bytes / 4 / size : 1;
    all = malloc((size_t)count * size * 4 * (which >= 4 ? 2 : 1));
    part = malloc((size_t)count * 4);
    for (int i = 0; i < count; i++) part[i] = 1;
    double begun = MPI_Wtime();
    for (int turn = 0; turn < WARM; turn++) timed(which);
    taken[0] = (MPI_Wtime() - begun) / WARM;
    MPI_Allreduce(MPI_IN_PLACE, taken, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    double fitting = BUDGET / taken[0];
    int times = fitting < FEWEST ? FEWEST : fitting > MOST ? MOST : (int)fitting;
    for (int turn = 0; turn < times; turn++) taken[turn] = timed(which);
    MPI_Allreduce(MPI_IN_PLACE, taken, times, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    qsort(taken, times, sizeof *taken, compare);
    if (rank == 0) printf("%s %d %.2f\n", NAMES[which], bytes, taken[times / 2] * 1e6);
    free(all);
    free(part);
}

int main(int argc, char **argv) {
    char version[MPI_MAX_LIBRARY_VERSION_STRING];
    int length;
    MPI_Init(&argc, &argv);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Get_library_version(version, &length);
    for (char *end = version; *end; end++) {
        if (*end == '\n' || *end == ',') *end = 0;
    }
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (rank == 0) printf("library %s\n", version);
    for (int which = 0; which < 6; which++) {
        for (int i = 0; i < 4; i++) measure(which, LENGTHS[i]);
    }
    measure(6, 0);
    MPI_Finalize();
    return 0;
}
