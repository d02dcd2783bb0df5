//! The trainer on several hosts: started by the real mpirun in every layout, and by hand with
//! faults.

mod checkpoints;
mod faults;
mod job;
mod launched;
mod random_faults;
mod traffic;
