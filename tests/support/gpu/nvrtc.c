/* A stand-in for libnvrtc: keeps the source, which the driver's stand-in compiles for the CPU. */
#include "stand_in.h"

struct program {
    char *source;
};

EXPORT int nvrtcVersion(int *major, int *minor)
{
    *major = 13;
    *minor = 0;
    return 0;
}

EXPORT const char *nvrtcGetErrorString(int code)
{
    return code ? "NVRTC_ERROR_COMPILATION" : "NVRTC_SUCCESS";
}

EXPORT int nvrtcCreateProgram(struct program **made, const char *source, const char *name, int headers, const char *const *texts,
                              const char *const *names)
{
    (void)name, (void)headers, (void)texts, (void)names;
    CALL("nvrtcCreateProgram");
    *made = malloc(sizeof **made);
    (*made)->source = strdup(source);
    return 0;
}

EXPORT int nvrtcCompileProgram(struct program *program, int count, const char *const *options)
{
    (void)program, (void)count, (void)options;
    CALL("nvrtcCompileProgram");
    return 0;
}

EXPORT int nvrtcGetProgramLogSize(struct program *program, size_t *size)
{
    (void)program;
    *size = sizeof "default_program(1): error: this is a stand-in's error";
    return 0;
}

EXPORT int nvrtcGetProgramLog(struct program *program, char *log)
{
    (void)program;
    strcpy(log, "default_program(1): error: this is a stand-in's error");
    return 0;
}

EXPORT int nvrtcGetPTXSize(struct program *program, size_t *size)
{
    *size = strlen(program->source) + 1;
    return 0;
}

EXPORT int nvrtcGetPTX(struct program *program, char *text)
{
    CALL("nvrtcGetPTX");
    strcpy(text, program->source);
    return 0;
}

EXPORT int nvrtcDestroyProgram(struct program **program)
{
    free((*program)->source);
    free(*program);
    *program = NULL;
    return 0;
}
