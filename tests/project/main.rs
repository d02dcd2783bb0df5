//! The whole project: its pages, job files, package, wheel and workflow.

#[path = "../support"]
mod support {
    pub mod cargo;
    pub mod clock;
    pub mod gpu;
    #[expect(dead_code, reason = "jobs say themselves where their ranks are")]
    pub mod hosts;
    pub mod port;
    pub mod python;
    pub mod root;
    pub mod script;
    pub mod timeout;
    pub mod tool;
    pub mod trainer;
}

#[cfg(target_os = "linux")]
mod asking;
mod comparison;
mod examples;
mod help;
mod installation;
mod jobs;
mod package;
mod pictures;
mod platforms;
mod python_module;
mod readme;
#[cfg(target_os = "linux")]
mod restarts;
mod results;
mod rust_program;
mod threats;
mod variables;
mod wheel;
mod workflow;
