//! The primitives that the team is made of: the standard library's, or loom's stand-ins for them in model tests.

#[cfg(all(loom, test))]
pub(super) use loom::{
    cell::UnsafeCell,
    hint::spin_loop,
    sync::atomic::{AtomicBool, AtomicUsize},
    sync::{Condvar, Mutex, MutexGuard},
    thread::yield_now,
};

#[cfg(not(all(loom, test)))]
pub(super) use self::cell::UnsafeCell;
#[cfg(not(all(loom, test)))]
pub(super) use std::{
    hint::spin_loop,
    sync::atomic::{AtomicBool, AtomicUsize},
    sync::{Condvar, Mutex, MutexGuard},
    thread::yield_now,
};

#[cfg(not(all(loom, test)))]
mod cell {
    /// The standard cell with loom's interface, in which every access has a beginning and an end.
    pub(in crate::team) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

    impl<T> UnsafeCell<T> {
        pub(in crate::team) fn new(value: T) -> Self {
            Self(std::cell::UnsafeCell::new(value))
        }
        /// Gives `read` a pointer that it may read through, if nobody writes meanwhile.
        pub(in crate::team) fn with<R>(&self, read: impl FnOnce(*const T) -> R) -> R {
            read(self.0.get())
        }
        /// Gives `write` a pointer that it may write through, if nobody reads or writes meanwhile.
        pub(in crate::team) fn with_mut<R>(&self, write: impl FnOnce(*mut T) -> R) -> R {
            write(self.0.get())
        }
    }
}

/// A flag of each thread, false at first.
#[cfg(not(all(loom, test)))]
macro_rules! thread_flag {
    ($(#[$meta:meta])* $name:ident) => {
        std::thread_local! {
            $(#[$meta])*
            static $name: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
        }
    };
}

#[cfg(all(loom, test))]
macro_rules! thread_flag {
    ($(#[$meta:meta])* $name:ident) => {
        loom::thread_local! {
            $(#[$meta])*
            static $name: std::cell::Cell<bool> = std::cell::Cell::new(false);
        }
    };
}
pub(super) use thread_flag;
