"""A run's recording and journal as series and events, in the forms of the tools where people look at trainings."""
