/* What the stand-ins for NVIDIA's libraries have in common. They are built by the tests, compute on the CPU, and fail as the
 * variables of the environment say:
 *
 *   STAND_IN_SHARED   a folder that all hosts see, in which compiled kernels are kept
 *   STAND_IN_LOG      the file to which the name of each call is appended
 *   STAND_IN_FAIL     CALL=CODE: the call returns that code; CALL=CODE#N: only its Nth call does; CALL=CODE@OTHER: only once
 *                     OTHER is in the log
 *   STAND_IN_DEVICES  how many devices the host has (1)
 *   STAND_IN_DRIVER   the driver's version (13000)
 *   STAND_IN_CAPABILITY  the devices' compute capability (90)
 *   STAND_IN_NCCL     NCCL's version (22809)
 *   STAND_IN_NETWORK  the network that NCCL names in its log (Socket)
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

__attribute__((unused)) static int stand_in_number(const char *name, int otherwise)
{
    const char *text = getenv(name);
    return text && *text ? atoi(text) : otherwise;
}

static int stand_in_has_called(const char *log, const char *name)
{
    FILE *file = log ? fopen(log, "re") : NULL;
    char line[64];
    int found = 0;
    while (file && !found && fgets(line, sizeof line, file))
        found = strncmp(line, name, strlen(name)) == 0;
    if (file)
        fclose(file);
    return found;
}

/* Notes a call. Returns the code with which it must fail, or 0. `counter` counts the calls. */
static int stand_in_call(const char *name, int *counter)
{
    const char *log = getenv("STAND_IN_LOG"), *fail = getenv("STAND_IN_FAIL");
    int number = __atomic_add_fetch(counter, 1, __ATOMIC_SEQ_CST);
    if (log && *log) {
        int file = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
        if (file >= 0) {
            dprintf(file, "%s\n", name);
            close(file);
        }
    }
    size_t length = strlen(name);
    if (fail && strncmp(fail, name, length) == 0 && fail[length] == '=') {
        const char *which = strchr(fail, '#'), *after = strchr(fail, '@');
        if ((!which || atoi(which + 1) == number) && (!after || stand_in_has_called(log, after + 1)))
            return atoi(fail + length + 1);
    }
    return 0;
}

#define CALL(name)                                     \
    do {                                               \
        static int calls;                              \
        int failed = stand_in_call(name, &calls);      \
        if (failed)                                    \
            return failed;                             \
    } while (0)
