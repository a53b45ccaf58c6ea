//! Numbered places whose numbers are never mistaken for those of an earlier occupant.

#[derive(Debug)]
pub(super) struct Slots<T> {
    places: Vec<Place<T>>,
    used: usize,
}

#[derive(Debug)]
struct Place<T> {
    generation: u32,
    occupant: Option<T>,
}

impl<T> Slots<T> {
    pub(super) fn new() -> Self {
        Self { places: Vec::new(), used: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.used
    }

    /// The key is below 2^56.
    pub(super) fn insert(&mut self, occupant: T) -> u64 {
        let free = self.places.iter().position(|place| place.occupant.is_none()).unwrap_or_else(|| {
            self.places.push(Place { generation: 0, occupant: None });
            self.places.len() - 1
        });
        let place = &mut self.places[free];
        place.generation = (place.generation + 1) & 0x00ff_ffff;
        place.occupant = Some(occupant);
        self.used += 1;
        u64::from(place.generation) << 32 | free as u64
    }

    /// Takes the occupant out; its key stays its own until `free`.
    pub(super) fn take(&mut self, key: u64) -> Option<T> {
        self.place(key)?.occupant.take()
    }

    /// Puts back what `take` took out.
    pub(super) fn put_back(&mut self, key: u64, occupant: T) {
        if let Some(place) = self.place(key) {
            place.occupant = Some(occupant);
        }
    }

    /// Says that what `take` took out does not come back.
    pub(super) fn free(&mut self, key: u64) {
        if self.place(key).is_some() {
            self.used -= 1;
        }
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = u64> + use<T> {
        let taken = |(index, place): (usize, &Place<T>)| {
            place.occupant.is_some().then(|| u64::from(place.generation) << 32 | index as u64)
        };
        let keys: Vec<u64> = self.places.iter().enumerate().filter_map(taken).collect();
        keys.into_iter()
    }

    fn place(&mut self, key: u64) -> Option<&mut Place<T>> {
        let place = self.places.get_mut((key & 0xffff_ffff) as usize)?;
        (u64::from(place.generation) == key >> 32).then_some(place)
    }
}
